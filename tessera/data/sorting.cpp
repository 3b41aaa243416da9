#include <algorithm>
#include <array>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/data/source.h"

namespace tessera::data {
namespace {

constexpr Token kBar = 10, kEnd = 11;
constexpr std::int64_t kVocab = 12;
constexpr std::int64_t kDigits = 7;  // a problem takes 16 tokens, which divides common lengths

class Sorting final : public Source {
 public:
  Sorting(std::int64_t seq, std::uint64_t seed)
      : seq_(seq), digits_(std::min(kDigits, seq / 2)), random_(seed, stream_of("data.sorting")) {
    if (seq < 2) {
      throw UsageError(
          str("--seq is ", seq, "; the sorting task needs at least 2, and 16 to be hard"), "seq");
    }
  }

  std::string name() const override { return "synthetic (sorting)"; }
  std::int64_t vocab() const override { return kVocab; }
  std::int64_t seq() const override { return seq_; }

  void fill(std::uint64_t sample, const Row& row) const override {
    const std::int64_t length = 2 * digits_ + 2;
    const std::int64_t problems = (seq_ + length - 1) / length;
    for (std::int64_t problem = 0; problem < problems; ++problem) {
      const auto number =
          sample * static_cast<std::uint64_t>(problems) + static_cast<std::uint64_t>(problem);
      const std::vector<Token> text = problem_text(number);
      for (std::int64_t i = 0; i < length && problem * length + i < seq_; ++i) {
        const auto at = static_cast<std::size_t>(problem * length + i);
        row.ids[at] = text[static_cast<std::size_t>(i)];
        const bool answering = i >= digits_ && i < 2 * digits_;
        row.targets[at] = answering ? text[static_cast<std::size_t>(i) + 1] : kIgnored;
      }
    }
  }

  Question question(std::uint64_t number) const override {
    const std::vector<Token> text = problem_text(kQuestions + number);
    const auto middle = text.begin() + digits_ + 1;
    return {{text.begin(), middle}, digits_, {middle, text.end() - 1}};
  }

  std::string show(const Question& question, std::span<const Token> answer) const override {
    std::string line;
    for (const Token token : question.prompt) line += symbol(token) + " ";
    for (const Token token : answer) line += symbol(token) + " ";
    const bool right =
        std::equal(answer.begin(), answer.end(), question.answer.begin(), question.answer.end());
    return line + (right ? "✓" : "✗");
  }

 private:
  // Digits, bar, sorted digits, end.
  std::vector<Token> problem_text(std::uint64_t number) const {
    std::vector<Token> text;
    for (std::int64_t i = 0; i < digits_; ++i) {
      // Two blocks of four numbers for each problem.
      const std::uint32_t bits = random_.bits(8 * number + static_cast<std::uint64_t>(i));
      text.push_back(static_cast<Token>((std::uint64_t{bits} * 10) >> 32));
    }
    text.push_back(kBar);
    text.insert(text.end(), text.begin(), text.begin() + digits_);
    std::sort(text.end() - digits_, text.end());
    text.push_back(kEnd);
    return text;
  }
  static std::string symbol(Token token) {
    if (token >= 0 && token < 10) return std::string(1, static_cast<char>('0' + token));
    return token == kBar ? "|" : token == kEnd ? "." : "?";
  }

  std::int64_t seq_;
  std::int64_t digits_;
  Philox random_;
};

}  // namespace

std::unique_ptr<Source> sorting(std::int64_t seq, std::uint64_t seed) {
  return std::make_unique<Sorting>(seq, seed);
}

}  // namespace tessera::data
