#include "tessera/cli/generate_output.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "tessera/cli/json_output.h"
#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::cli {

std::string text_of(const data::Tokenizer& tokenizer, const Answer& answer) {
  const auto id = [](std::int64_t token) { return static_cast<data::TokenId>(token); };
  const std::size_t count = answer.written.size();
  const data::TokenId last[] = {id(count > 1 ? answer.written[count - 2] : answer.ids.back()),
                                id(answer.written[count - 1])};
  // The model's vocabulary may be padded beyond the tokenizer's; such tokens have no text.
  const auto known = [&](data::TokenId token) { return token < tokenizer.vocab(); };
  if (!known(last[1])) return "";
  if (!known(last[0])) return tokenizer.decode({&last[1], 1}, /*skip_special=*/true);
  const std::size_t before = tokenizer.decode({last, 1}, true).size();
  const std::string both = tokenizer.decode(last, true);
  return both.substr(std::min(before, both.size()));  // decoding both may give a shorter text
}

bool GenerateOutput::more(std::size_t i, const std::string& text) {
  std::string storage;
  Answer& answer = answers_[i];
  const std::string clean(data::clean_utf8(text, data::BadUtf8::replace, storage).text);
  answer.shown += clean;
  answer.waiting += clean;
  return flush();
}

bool GenerateOutput::flush() {
  while (next_ < answers_.size()) {
    Answer& answer = answers_[next_];
    const bool done = *answer.ended != '\0';
    std::string text;
    if (json_) {
      if (!done) return true;
      text = json_text({{"prompt", answer.prompt},
                        {"text", answer.shown},
                        {"ended", answer.ended},
                        {"prompt_tokens", answer.ids.size()},
                        {"tokens", answer.written}},
                       -1);
    } else {
      if (!begun_) text = (next_ > 0 ? "\n" : "") + answer.prompt;
      begun_ = true;
      text += std::exchange(answer.waiting, {});
      if (done) text += "\n";
    }
    if (!text.empty() && !write_all(1, text)) {
      if (errno == EPIPE) return false;
      throw Error(str("cannot write to stdout: ", std::strerror(errno)));
    }
    if (!done) return true;
    begun_ = false;
    ++next_;
  }
  return true;
}

}  // namespace tessera::cli
