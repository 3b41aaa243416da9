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

// What the documents are.
enum class DocumentFormat : std::uint8_t {
  text,    // a text, or the field of JSON lines that has it
  prompt,  // {"prompt": …, "response" or "completion": …}: only the response is learnt
  chat,  // {"messages": [{"role": …, "content": …}, …]}: only what the assistant says is learnt
};

struct DocumentOptions {
  DocumentFormat format = DocumentFormat::text;
  SplitDocuments split = SplitDocuments::file;
  std::string text_field = "text";
  std::string chat_template = "chatml";
  BadUtf8 bad_utf8 = BadUtf8::replace;
  // Text that is that of a special token becomes this token.
  bool special_text = false;
  TokenId end = 0;             // behind each document
  std::vector<TokenId> begin;  // in front of each: [Note: beginning of a text]
};

// What was found; sums over parts.
struct DocumentCounts {
  std::uint64_t documents = 0, bytes_of_text = 0, learnt = 0;
  std::uint64_t replaced = 0;  // sequences that were no UTF-8
  std::uint64_t empty = 0;     // documents with nothing in them, which are left out

  void add(const DocumentCounts& other);
  friend bool operator==(const DocumentCounts&, const DocumentCounts&) = default;
};

// Makes tokens of parts. From several threads at once.
class DocumentEncoder {
 public:
  // Throws UsageError for a template that the tokenizer has no tokens for.
  DocumentEncoder(const Tokenizer& tokenizer, DocumentOptions options);

  // Throws DataError with the file and the line.
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
  bool bytes_;  // every byte is its own token
  std::optional<ChatTemplate> template_;
};

}  // namespace tessera::data
