#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/chat_template.h"
#include "tessera/data/input_parts.h"
#include "tessera/data/token_writer.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Format of the documents.
enum class DocumentFormat : std::uint8_t {
  text,    // plain text, or a field of JSON lines
  prompt,  // {"prompt": …, "response" or "completion": …}: loss on the response only
  chat,  // {"messages": [{"role": …, "content": …}, …]}: loss on the assistant's messages only
};

// Options of DocumentEncoder.
struct DocumentOptions {
  DocumentFormat format = DocumentFormat::text;
  SplitDocuments split = SplitDocuments::file;
  std::string text_field = "text";
  std::string chat_template = "chatml";
  BadUtf8 bad_utf8 = BadUtf8::replace;
  // Encodes the text of a special token as that token.
  bool special_text = false;
  TokenId end = 0;             // appended to each document
  std::vector<TokenId> begin;  // prepended to each document: [Note: beginning of a text]
};

// Statistics of encoded documents; additive over parts.
struct DocumentCounts {
  std::uint64_t documents = 0, bytes_of_text = 0, learned = 0;
  std::uint64_t replaced = 0;  // invalid UTF-8 sequences
  std::uint64_t empty = 0;     // empty documents, which are dropped

  void add(const DocumentCounts& other);
  friend bool operator==(const DocumentCounts&, const DocumentCounts&) = default;
};

// Encodes parts of the input. Thread-safe.
class DocumentEncoder {
 public:
  // Throws UsageError if the tokenizer lacks the tokens of the template.
  DocumentEncoder(const Tokenizer& tokenizer, DocumentOptions options);

  // Throws DataError that names the file and the line.
  TokenPart encode(InputPart&& part, DocumentCounts& counts) const;
  bool masked() const { return options_.format != DocumentFormat::text; }

 private:
  struct Work;
  void encode_text(const InputPart& part, Work& work) const;
  void encode_lines(const InputPart& part, Work& work) const;
  void encode_line(std::string_view line, Work& work) const;
  void append(std::string_view text, bool begins, Work& work) const;
  void begin_document(Work& work) const;
  void end_document(Work& work) const;
  TokenPart encode_bytes(InputPart&& part, DocumentCounts& counts) const;

  const Tokenizer& tokenizer_;
  DocumentOptions options_;
  int width_;
  bool bytes_;  // every byte is a token
  std::optional<ChatTemplate> template_;
};

}  // namespace tessera::data
