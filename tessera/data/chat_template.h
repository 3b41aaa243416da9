#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

// Message of a conversation.
struct ChatMessage {
  std::string role, content;
};

// [Note: chat templates] Conversion of a conversation to tokens. The loss covers only the
// assistant's messages and the token that ends them.
//   chatml  <|im_start|>role\ncontent<|im_end|>\n   for each message, without the last \n
//   llama3  <|begin_of_text|>, and for each message
//           <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>, white space around the
//           content removed
//   mistral <s>, and for each turn [INST] content[/INST] answer</s>, as in Mistral's v3 templates;
//           with a space before [/INST] if the tokenizer has no token for it (v1, v2). A system
//           message precedes the first user message, separated by \n\n
//   plain   "User: content\n\nAssistant: content" and the end-of-document token: for tokenizers
//           without chat tokens
// Adjacent texts are encoded as one, except at the borders of the trained text. Nothing else is
// added: no default system message (templates of Qwen2 and Qwen2.5 add one, and a \n after the
// last message), no date, no tools. Jinja templates, as in tokenizer_config.json, are not run;
// template_notes() reports them.
class ChatTemplate {
 public:
  static const std::vector<std::string>& names();
  // Throws UsageError for an unknown name, or if the tokenizer lacks the template's tokens.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer, TokenId end);

  struct Out {
    std::vector<TokenId>& ids;
    std::vector<std::uint8_t>& learned;
    std::uint64_t& bytes;  // of the text
  };
  // Throws UsageError for a role other than system, user or assistant. The caller adds the line.
  void append(const std::vector<ChatMessage>& messages, const EncodeOptions& options,
              Out& out) const;

 private:
  enum class Kind : std::uint8_t { chatml, llama3, mistral, plain };
  class Writer;
  void append_mistral(const std::vector<ChatMessage>& messages, Writer& write) const;

  const Tokenizer& tokenizer_;
  Kind kind_ = Kind::plain;
  std::optional<TokenId> begin_;
  TokenId header_ = 0, header_end_ = 0, end_ = 0;
  bool marks_ = true;  // mistral: [INST] and [/INST] are tokens
};

// Returns notes for the user if the folder of the tokenizer (as load_tokenizer() takes it) has its
// own template, which the built-in one replaces.
std::vector<std::string> template_notes(const std::string& name, const std::string& tokenizer);

}  // namespace tessera::data
