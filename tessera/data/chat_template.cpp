#include "tessera/data/chat_template.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

TokenId special_of(const Tokenizer& tokenizer, const std::string& text, const std::string& name) {
  if (const std::optional<TokenId> id = tokenizer.find(text)) return *id;
  throw UsageError(str("--template ", name, ": the tokenizer ", quote(tokenizer.name()),
                       " has no token ", text, ". Use --template plain, which needs none."),
                   "template");
}

std::string trimmed(const std::string& text) {
  constexpr const char* kSpace = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

}  // namespace

const std::vector<std::string>& ChatTemplate::names() {
  static const std::vector<std::string> all = {"chatml", "llama3", "mistral", "plain"};
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
  } else if (name == "mistral") {
    kind_ = Kind::mistral;
    begin_ = special_of(tokenizer, "<s>", name);
    end_ = special_of(tokenizer, "</s>", name);
    const auto open = tokenizer.find("[INST]"), close = tokenizer.find("[/INST]");
    marks_ = open && close;
    header_ = open.value_or(0);
    header_end_ = close.value_or(0);
  } else if (name != "plain") {
    throw UsageError(
        Flag("template"),
        str("got ", quote(name), ", must be ", join(names(), ", "), did_you_mean(name, names()),
            "; Jinja templates are not supported. Write the conversation as text or as "
            "prompt and response, and use --format text or prompt."));
  }
}

// Writes texts and tokens one after the other.
class ChatTemplate::Writer {
 public:
  Writer(const Tokenizer& tokenizer, bool special, Out& out)
      : tokenizer_(tokenizer), special_(special), out_(out) {}

  // Text that the template adds.
  void own(std::string_view text) { add(text, false, false); }
  void content(std::string_view text, bool learned) { add(text, learned, special_); }
  void token(TokenId id, bool learned) {
    flush();
    out_.ids.push_back(id);
    out_.learned.push_back(learned ? 1 : 0);
    behind_ = EncodeOptions::Behind::token;
  }
  void flush() {
    if (waiting_.empty()) return;
    tokenizer_.encode(waiting_, out_.ids,
                      {.special = waiting_special_, .around = false, .behind = behind_});
    out_.learned.resize(out_.ids.size(), waiting_learned_ ? 1 : 0);
    out_.bytes += waiting_.size();
    waiting_.clear();
    behind_ = EncodeOptions::Behind::text;
  }

 private:
  void add(std::string_view text, bool learned, bool special) {
    if (learned != waiting_learned_ || special != waiting_special_) flush();
    waiting_learned_ = learned;
    waiting_special_ = special;
    waiting_ += text;
  }

  const Tokenizer& tokenizer_;
  bool special_;
  Out& out_;
  std::string waiting_;
  bool waiting_learned_ = false, waiting_special_ = false;
  EncodeOptions::Behind behind_ = EncodeOptions::Behind::nothing;
};

void ChatTemplate::append_mistral(const std::vector<ChatMessage>& messages, Writer& write) const {
  std::string system;
  bool expects_user = true;  // the next message must be the user's
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (i == 0 && message.role == "system") {
      system = message.content + "\n\n";
      continue;
    }
    if (message.role != (expects_user ? "user" : "assistant")) {
      throw UsageError(str("a message has the role ", quote(message.role), ", must be ",
                           expects_user ? "user" : "assistant",
                           ": --template mistral takes an optional system message, then user and "
                           "assistant alternately"));
    }
    if (expects_user) {
      if (marks_) {
        write.token(header_, false);
      } else {
        write.own("[INST]");
      }
      write.own(" ");
      write.content(system + message.content, false);
      if (marks_) {
        write.token(header_end_, false);
      } else {
        write.own(" [/INST]");
      }
      system.clear();
    } else {
      write.content(" " + (marks_ ? trimmed(message.content) : message.content), true);
      write.token(end_, true);
    }
    expects_user = !expects_user;
  }
  write.flush();
}

void ChatTemplate::append(const std::vector<ChatMessage>& messages, const EncodeOptions& options,
                          Out& out) const {
  out.learned.resize(out.ids.size());
  Writer write(tokenizer_, options.special, out);
  if (begin_) write.token(*begin_, false);
  if (kind_ == Kind::mistral) return append_mistral(messages, write);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      throw UsageError(str("a message has the role ", quote(message.role),
                           ", must be system, user or assistant: no built-in template supports "
                           "other roles"));
    }
    const bool learned = message.role == "assistant";
    const bool last = i + 1 == messages.size();
    switch (kind_) {
      case Kind::chatml:
        write.token(header_, false);
        write.own(message.role + "\n");
        write.content(message.content, learned);
        write.token(end_, learned);
        if (!last) write.own("\n");
        break;
      case Kind::llama3:
        write.token(header_, false);
        write.own(message.role);
        write.token(header_end_, false);
        write.own("\n\n");
        write.content(trimmed(message.content), learned);
        write.token(end_, learned);
        break;
      case Kind::mistral: break;
      case Kind::plain: {
        const std::string who = message.role == "user"     ? "User:"
                                : message.role == "system" ? "System:"
                                                           : "Assistant:";
        write.own((i > 0 ? "\n\n" : "") + who);
        write.content(" " + message.content, learned);
        if (learned || last) write.token(end_, learned);
      }
    }
  }
  write.flush();
}

std::vector<std::string> template_notes(const std::string& name, const std::string& tokenizer) {
  if (tokenizer == "bytes") return {};
  constexpr std::int64_t kMost = std::int64_t{16} << 20;
  const std::string folder = kind_of_file(tokenizer) == "a folder" ? tokenizer + "/"
                             : tokenizer.find('/') == std::string::npos
                                 ? std::string()
                                 : tokenizer.substr(0, tokenizer.rfind('/') + 1);
  std::string from = folder + "chat_template.jinja";
  if (kind_of_file(from) != "a regular file") {
    from = folder + "tokenizer_config.json";
    if (kind_of_file(from) != "a regular file") return {};
    const auto json = nlohmann::json::parse(read_small_file(from, kMost), nullptr,
                                            /*allow_exceptions=*/false);
    const auto own = json.is_object() ? json.find("chat_template") : json.end();
    if (!json.is_object() || own == json.end() || own->is_null()) return {};
  }
  return {str("--template ", name, ": the template in ", from, " is not run",
              name == "chatml"
                  ? "; those of Qwen2 and Qwen2.5 differ from chatml: they add a system message to "
                    "conversations without one, and a newline after the last message. "
                    "Write that message into the data if the model should see it"
                  : " and may differ from the built-in one")};
}

}  // namespace tessera::data
