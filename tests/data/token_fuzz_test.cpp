// Feeds what reads token folders and texts with inputs made from those in tests/data/fuzz by
// cutting, copying, flipping and putting in what tends to break them. The same every time.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tests/data/token_fuzz_targets.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

// A sanitizer makes each input many times as dear: there fewer do.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::int64_t kTokenInputs = TESSERA_FUZZ_INPUTS / 10;
#else
constexpr std::int64_t kTokenInputs = TESSERA_FUZZ_INPUTS;
#endif

const std::vector<std::string>& token_words() {
  static const std::vector<std::string> all = {"0",
                                               "1",
                                               "-1",
                                               "9223372036854775807",
                                               "18446744073709551615",
                                               "18446744073709551616",
                                               "4503599627370496",
                                               "1e3",
                                               "1.5",
                                               "null",
                                               "true",
                                               "\"\"",
                                               "{}",
                                               "[]",
                                               "[[]]",
                                               "\"text\": \"x\"",
                                               "\"role\": \"assistant\"",
                                               "\"../x.bin\"",
                                               "\"tokens-00001.bin\"",
                                               "\"masked\": true",
                                               "\\u0000",
                                               "\\ud800",
                                               "\\udc00",
                                               "\\n",
                                               "\xff",
                                               "\xc3\x28",
                                               "\xef\xbb\xbf",
                                               "\n\n",
                                               "\r\n",
                                               " \t\n",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               ",",
                                               ":",
                                               "\"",
                                               std::string(1, '\0'),
                                               std::string(4, '\xff')};
  return all;
}

class TokenMutator {
 public:
  explicit TokenMutator(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      seeds_.push_back(read_all(entry.path().string()));
    }
    std::sort(seeds_.begin(), seeds_.end());
  }
  bool empty() const { return seeds_.empty(); }
  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t left = below(5); left > 0; --left) mutate(input);
    if (input.size() > 4000) input.resize(4000);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  void mutate(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, below(16) + 1);
    const std::string& word = token_words()[below(token_words().size())];
    switch (below(8)) {
      case 0: input.erase(at, length); break;
      case 1: input.insert(at, word); break;
      case 2: input.replace(at, length, word); break;
      case 3: input.insert(at, input.substr(below(input.size() + 1), below(64))); break;
      case 4:
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        break;
      case 5:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1U << below(8)));
        break;
      case 6: {  // another number in the place of one
        const std::size_t digit = input.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const std::size_t end = input.find_first_not_of("0123456789", digit);
        input.replace(digit, end == std::string::npos ? end : end - digit, word);
        break;
      }
      default: {  // another word in the place of one
        const std::size_t begin = input.find('"', at);
        const std::size_t end = begin == std::string::npos ? begin : input.find('"', begin + 1);
        if (end != std::string::npos) input.replace(begin, end + 1 - begin, word);
      }
    }
  }

  std::mt19937_64 random_{20261116};
  std::vector<std::string> seeds_;
};

void run_token_fuzz(const std::string& kind, void (*target)(std::string_view)) {
  TokenMutator mutator(std::string(TESSERA_FUZZ_DATA) + "/" + kind);
  ASSERT_FALSE(mutator.empty());
  for (std::int64_t i = 0; i < kTokenInputs; ++i) target(mutator.next());
}

TEST(TokenFuzz, Manifests) { run_token_fuzz("tokens", fuzz_tokens); }
TEST(TokenFuzz, States) { run_token_fuzz("prepare", fuzz_prepare); }
TEST(TokenFuzz, Bins) { run_token_fuzz("bin", fuzz_bin); }
TEST(TokenFuzz, Json) { run_token_fuzz("jsonl", fuzz_jsonl); }
TEST(TokenFuzz, Lines) { run_token_fuzz("lines", fuzz_lines); }
TEST(TokenFuzz, Texts) { run_token_fuzz("text", fuzz_text); }
TEST(TokenFuzz, Packed) { run_token_fuzz("packed", fuzz_packed); }

}  // namespace
}  // namespace tessera::data
