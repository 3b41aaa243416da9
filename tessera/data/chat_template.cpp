#include "tessera/data/chat_template.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

TokenId special_of(const Tokenizer& tokenizer, const std::string& text, const std::string& name) {
  if (const std::optional<TokenId> id = tokenizer.find(text)) return *id;
  throw UsageError(str("--template ", name, ": the tokenizer ", quote(tokenizer.name()),
                       " has no token ", text, "; --template plain needs none"));
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

const std::vector<std::string>& ChatTemplate::names() {
  static const std::vector<std::string> all = {"chatml", "llama3", "plain"};
  return all;
}

ChatTemplate::ChatTemplate(const std::string& name, const Tokenizer& tokenizer, TokenId end)
    : tokenizer_(tokenizer), end_(end) {
  if (name == "chatml") {
    kind_ = Kind::chatml;
    header_ = special_of(tokenizer, "<|im_start|>", name);
    end_ = special_of(tokenizer, "<|im_end|>", name);
  } else if (name == "llama3") {
    kind_ = Kind::llama3;
    begin_ = special_of(tokenizer, "<|begin_of_text|>", name);
    header_ = special_of(tokenizer, "<|start_header_id|>", name);
    header_end_ = special_of(tokenizer, "<|end_header_id|>", name);
    end_ = special_of(tokenizer, "<|eot_id|>", name);
  } else if (name != "plain") {
    throw UsageError(str("--template: got ", quote(name), ", wanted ", join(names(), ", "),
                         did_you_mean(name, names()),
                         "; templates in Jinja are not run: write the conversation as text, or as "
                         "prompt and response, and use --format text or prompt"));
  }
}

void ChatTemplate::text(const std::string& text, bool learnt, const EncodeOptions& options,
                        Out& out) const {
  tokenizer_.encode(text, out.ids, options);
  out.learnt.resize(out.ids.size(), learnt ? 1 : 0);
  out.bytes += text.size();
}

void ChatTemplate::token(TokenId id, bool learnt, Out& out) {
  out.ids.push_back(id);
  out.learnt.push_back(learnt ? 1 : 0);
}

void ChatTemplate::append(const std::vector<ChatMessage>& messages, const EncodeOptions& options,
                          Out& out) const {
  out.learnt.resize(out.ids.size());
  if (begin_) token(*begin_, false, out);
  const EncodeOptions own{.special = false, .around = false};  // of what the template adds
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      throw UsageError(str("the role ", quote(message.role),
                           ", wanted system, user or assistant: others need a template that is "
                           "not built in"));
    }
    const bool learnt = message.role == "assistant";
    const bool last = i + 1 == messages.size();
    switch (kind_) {
      case Kind::chatml:
        token(header_, false, out);
        text(message.role + "\n", false, own, out);
        text(message.content, learnt, options, out);
        token(end_, learnt, out);
        if (!last) text("\n", false, own, out);
        break;
      case Kind::llama3:
        token(header_, false, out);
        text(message.role, false, own, out);
        token(header_end_, false, out);
        text("\n\n", false, own, out);
        text(trimmed(message.content), learnt, options, out);
        token(end_, learnt, out);
        break;
      case Kind::plain: {
        const std::string who = message.role == "user"     ? "User:"
                                : message.role == "system" ? "System:"
                                                           : "Assistant:";
        text((i > 0 ? "\n\n" : "") + who, false, own, out);
        text(" " + message.content, learnt, options, out);
        if (learnt || last) token(end_, learnt, out);
      }
    }
  }
}

}  // namespace tessera::data
