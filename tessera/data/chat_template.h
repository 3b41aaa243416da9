#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/tokenizer.h"

namespace tessera::data {

struct ChatMessage {
  std::string role, content;
};

// [Note: chat templates] How the messages of a conversation become tokens. Only what the assistant
// says, and the token that ends it, is learnt.
//   chatml  <|im_start|>role\ncontent<|im_end|>\n   for each message, without the last \n
//   llama3  <|begin_of_text|>, and for each message
//           <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>, white space around the
//           content removed
//   mistral <s>, and for each turn [INST] content[/INST] answer</s>, as Mistral's v3 templates
//           write it; with a space before [/INST] where the tokenizer has no token for it (v1, v2).
//           A message of the system stands before the first of the user, with \n\n between
//   plain   "User: content\n\nAssistant: content" and the token that ends documents: for tokenizers
//           without tokens for conversations
// Texts that follow one another are encoded as one, except where what is learnt begins and ends.
// Nothing else is added: no message of a system that is not there (templates of Qwen2 and Qwen2.5
// add one, and a \n after the last message), no date, no tools. Templates in Jinja, as
// tokenizer_config.json may have, are not run; template_notes() says so.
class ChatTemplate {
 public:
  static const std::vector<std::string>& names();
  // Throws UsageError for a name that is none, and for a tokenizer without its tokens.
  ChatTemplate(const std::string& name, const Tokenizer& tokenizer, TokenId end);

  struct Out {
    std::vector<TokenId>& ids;
    std::vector<std::uint8_t>& learnt;
    std::uint64_t& bytes;  // of the text
  };
  // Throws UsageError for a role that is not system, user or assistant: whoever knows the line says
  // which.
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

// Note for the user about a built-in template beside a tokenizer (as load_tokenizer() takes
// it) whose folder has a template of its own. Empty where it has none.
std::vector<std::string> template_notes(const std::string& name, const std::string& tokenizer);

}  // namespace tessera::data
