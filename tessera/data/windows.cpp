#include "tessera/data/windows.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/core/utf8.h"
#include "tessera/data/shuffle.h"
#include "tessera/data/source.h"
#include "tessera/data/token_data.h"
#include "tessera/data/tokenizer.h"

namespace tessera::data {
namespace {

// Lengths of a question in bytes, and in tokens, which are a few bytes each.
constexpr std::int64_t kPromptBytes = 32, kAnswerBytes = 96, kPromptTokens = 16, kAnswerTokens = 48;
constexpr std::int64_t kBytesVocab = 256;

class Windows final : public Source {
 public:
  Windows(std::shared_ptr<const TokenData> data, const WindowOptions& options, Decode decode)
      : data_(std::move(data)),
        options_(options),
        decode_(std::move(decode)),
        random_(options.seed, stream_of("data.text") + options.stream),
        tokens_(data_->tokens()) {
    check_length();
    if (options_.order == Order::random) return;
    samples_ = count_samples();
    if (options_.order == Order::shuffle) order_.emplace(samples_, options.seed, options.stream);
  }

  std::string name() const override { return data_->path(); }
  std::int64_t vocab() const override { return data_->vocab(); }
  std::int64_t seq() const override { return options_.seq; }
  bool separate() const override { return options_.separate && options_.packed; }
  std::uint64_t samples_per_epoch() const override { return samples_; }
  std::string fingerprint() const override { return data_->fingerprint(); }
  double bytes_per_token() const override {
    return static_cast<double>(data_->bytes_of_text()) / static_cast<double>(tokens_);
  }

  void fill(std::uint64_t sample, const Row& row) const override {
    const Document window = window_of(sample);
    const auto seq = static_cast<std::size_t>(options_.seq);
    const auto length = static_cast<std::size_t>(window.end - window.begin);  // at most seq + 1
    if (length == 0) return blank(row);
    const std::size_t ids = std::min(length, seq);
    data_->read(window.begin, row.ids.first(ids));
    std::copy(row.ids.begin() + 1, row.ids.begin() + static_cast<std::ptrdiff_t>(ids),
              row.targets.begin());
    if (length > seq) data_->read(window.end - 1, row.targets.last(1));
    std::fill(row.ids.begin() + static_cast<std::ptrdiff_t>(ids), row.ids.end(), Token{0});
    std::fill(row.targets.begin() + static_cast<std::ptrdiff_t>(length - 1), row.targets.end(),
              kIgnored);
    if (data_->masked()) ignore_masked(window, row.targets);
    if (separate()) separate_documents(window, row);
  }

  std::string where(std::uint64_t sample) const override {
    const Document window = window_of(sample);
    const std::uint64_t number = data_->document_at(window.begin);
    return str("document ", number, " from its token ",
               window.begin - data_->document(number).begin, " of ", quote(data_->path()));
  }

  std::vector<std::string> notes() const override {
    if (options_.packed) return {};
    std::int64_t cut = 0, left_out = 0;
    const auto most = static_cast<std::uint64_t>(options_.seq) + 1;
    for (std::uint64_t i = 0; i < data_->documents(); ++i) {
      const Document each = data_->document(i);
      const std::uint64_t length = each.end - each.begin;
      cut += length > most ? 1 : 0;
      left_out += length > most ? static_cast<std::int64_t>(length - most) : 0;
    }
    if (cut == 0) return {};
    return {str(data_->path(), ": ", format_grouped(cut), " of ",
                plural(static_cast<std::int64_t>(data_->documents()), "document"), " cut to --seq ",
                options_.seq, ", ", plural(left_out, "token"), " left out")};
  }

  void check(std::int64_t vocabulary) const override {
    if (vocab() == 0 || vocab() > vocabulary) verify_tokens(*data_, vocabulary);
  }

  Question question(std::uint64_t number) const override {
    if (data_->masked()) return question_of_document(number);
    const bool bytes = vocab() == kBytesVocab;
    const auto length = static_cast<std::uint64_t>(std::min<std::int64_t>(
        {bytes ? kPromptBytes : kPromptTokens, options_.seq, static_cast<std::int64_t>(tokens_)}));
    std::vector<Token> prompt(static_cast<std::size_t>(length));
    data_->read(random_below(kQuestions + number, tokens_ - length + 1), prompt);
    return {prompt, bytes ? kAnswerBytes : kAnswerTokens, {}};
  }

  std::string show(const Question& question, std::span<const Token> answer) const override {
    return printable(text_of(question.prompt)) + " → " + printable(text_of(answer));
  }

 private:
  void check_length() const {
    const auto have = static_cast<std::int64_t>(tokens_);
    // Rows may be padded, but windows at random positions may not.
    const bool rows = options_.order != Order::random && (!options_.packed || options_.tail);
    const std::int64_t least = rows ? 2 : options_.seq + 1;
    if (have >= least) return;
    const char* const unit = vocab() == kBytesVocab ? "byte" : "token";
    throw DataError(str("--data: ", quote(data_->path()), " has ", format_grouped(have), " ", unit,
                        have == 1 ? "" : "s", "; --seq ", options_.seq, " needs ", least,
                        " or more. Use a longer file",
                        have > 2 ? str(", or --seq ", have - 1, " or less") : std::string()));
  }

  std::uint64_t count_samples() const {
    if (!options_.packed) return data_->documents();
    const auto seq = static_cast<std::uint64_t>(options_.seq);
    return (tokens_ - 1 + (options_.tail ? seq - 1 : 0)) / seq;
  }

  std::uint64_t random_below(std::uint64_t number, std::uint64_t bound) const {
    const PhiloxBlock words = random_.block(number);
    return ((std::uint64_t{words[0]} << 32) | words[1]) % bound;
  }

  // Returns the tokens of a sample, including the last target.
  Document window_of(std::uint64_t sample) const {
    const auto seq = static_cast<std::uint64_t>(options_.seq);
    if (options_.order == Order::random) {
      const std::uint64_t begin = random_below(sample, tokens_ - seq);
      return {begin, begin + seq + 1};
    }
    std::uint64_t number = sample % samples_;
    if (order_) number = order_->at(sample / samples_, number);
    if (!options_.packed) {
      const Document all = data_->document(number);
      return {all.begin, std::min(all.end, all.begin + seq + 1)};
    }
    return {number * seq, std::min(tokens_, number * seq + seq + 1)};
  }

  void ignore_masked(const Document& window, std::span<Token> targets) const {
    std::vector<std::uint8_t> learned(static_cast<std::size_t>(window.end - window.begin - 1));
    data_->read_mask(window.begin + 1, learned);
    for (std::size_t t = 0; t < learned.size(); ++t) {
      if (learned[t] == 0) targets[t] = kIgnored;
    }
  }

  // Sets the starts of the documents of a row, and ignores the target after each document's last
  // token.
  void separate_documents(const Document& window, const Row& row) const {
    std::uint64_t number = data_->document_at(window.begin);
    std::uint64_t begin = window.begin;
    while (begin < window.end) {
      const std::uint64_t end = std::min(data_->document(number++).end, window.end);
      for (std::uint64_t at = begin; at < end && at - window.begin < row.starts.size(); ++at) {
        row.starts[at - window.begin] = static_cast<std::int32_t>(begin - window.begin);
      }
      if (end < window.end && end > window.begin) row.targets[end - 1 - window.begin] = kIgnored;
      begin = end;
    }
    // Padding counts as a separate document.
    const std::uint64_t length = window.end - window.begin;
    for (std::uint64_t at = length; at < row.starts.size(); ++at) {
      row.starts[at] = static_cast<std::int32_t>(length);
    }
  }

  // Returns the tokens before the first one with a loss: a prompt.
  Question question_of_document(std::uint64_t number) const {
    const Document document =
        data_->document(random_below(kQuestions + number, data_->documents()));
    std::vector<std::uint8_t> learned(static_cast<std::size_t>(
        std::min(document.end - document.begin, static_cast<std::uint64_t>(options_.seq))));
    data_->read_mask(document.begin, learned);
    const auto first =
        std::find_if(learned.begin(), learned.end(), [](auto is) { return is != 0; });
    std::vector<Token> prompt(
        std::max<std::size_t>(1, static_cast<std::size_t>(first - learned.begin())));
    data_->read(document.begin, prompt);
    return {prompt, kAnswerTokens, {}};
  }

  std::string text_of(std::span<const Token> ids) const {
    if (decode_) return decode_(ids);
    std::vector<std::string> numbers;
    for (const Token id : ids) numbers.push_back(str(id));
    return join(numbers, " ");
  }

  std::shared_ptr<const TokenData> data_;
  WindowOptions options_;
  Decode decode_;
  Philox random_;
  std::uint64_t tokens_;
  std::uint64_t samples_ = 0;
  std::optional<Shuffle> order_;
};

}  // namespace

std::string decode_bytes(std::span<const Token> ids) {
  std::string text;
  for (const Token id : ids) text += id >= 0 && id < kBytesVocab ? static_cast<char>(id) : '?';
  return text;
}

std::unique_ptr<Source> windows(std::shared_ptr<const TokenData> data, const WindowOptions& options,
                                Decode decode) {
  return std::make_unique<Windows>(std::move(data), options, std::move(decode));
}

Decode decoder_of(const TokenData& data) {
  std::shared_ptr<const Tokenizer> tokenizer;
  try {
    tokenizer = tokenizer_of(data);
  } catch (const Error&) {
    // Without a tokenizer, tokens are shown as numbers; training needs no text.
  }
  if (!tokenizer) return nullptr;
  return [tokenizer](std::span<const Token> ids) {
    std::string text;
    std::vector<TokenId> known;
    const auto flush = [&] {
      text += tokenizer->decode(known);
      known.clear();
    };
    for (const Token id : ids) {
      if (id >= 0 && id < tokenizer->vocab()) {
        known.push_back(static_cast<TokenId>(id));
      } else {  // the model's vocabulary may be padded beyond the tokenizer's
        flush();
        text += "?";
      }
    }
    flush();
    return text;
  };
}

}  // namespace tessera::data
