// Feeds the parser of tokenizer.json and the encoder with inputs made from those in tests/data/fuzz
// by cutting, copying, flipping and putting in what tends to break them. The same every time.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "tessera/data/tokenizer_spec.h"
#include "tests/data/tokenizer_fuzz_targets.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

constexpr std::int64_t kInputs = TESSERA_FUZZ_INPUTS;

const std::vector<std::string>& fuzz_words() {
  static const std::vector<std::string> all = {"0",
                                               "1",
                                               "-1",
                                               "2147483648",
                                               "1e9",
                                               "null",
                                               "true",
                                               "false",
                                               "\"\"",
                                               "{}",
                                               "[]",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               ",",
                                               ":",
                                               "\"",
                                               "\\u0000",
                                               "\\ud800",
                                               "\\u2581",
                                               "\xff",
                                               "\xc3",
                                               "\xf0\x9f",
                                               "\n",
                                               "\r\n",
                                               "  ",
                                               "\"a\"",
                                               "\"ab\"",
                                               "\"type\":\"Split\"",
                                               "\"NFC\"",
                                               "\"NFD\"",
                                               "\"Sequence\"",
                                               "\"MergedWithNext\"",
                                               "\"Contiguous\"",
                                               "\"invert\":true",
                                               "\"byte_fallback\":true",
                                               "\"ignore_merges\":true",
                                               "\"special\":true",
                                               "\"normalized\":true",
                                               "\"lstrip\":true",
                                               "\"single_word\":true",
                                               "(?i:",
                                               "(?!",
                                               "\\\\p{L}+",
                                               "\\\\s*",
                                               "[^",
                                               "{1,3}",
                                               "|",
                                               "\\\\x{",
                                               "'ll",
                                               "\xe2\x96\x81",
                                               "\xcc\x81",
                                               "\xe1\x85\xa1",
                                               "\xf0\x9f\x98\x80",
                                               "<|endoftext|>",
                                               "<0x0A>",
                                               "<s>"};
  return all;
}

class TokenizerMutator {
 public:
  explicit TokenizerMutator(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      seeds_.push_back(read_all(entry.path().string()));
    }
    std::sort(seeds_.begin(), seeds_.end());
  }
  bool empty() const { return seeds_.empty(); }
  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t left = 1 + below(5); left > 0; --left) mutate(input);
    if (input.size() > 4096) input.resize(4096);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  void mutate(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, below(16) + 1);
    const std::string& word = fuzz_words()[below(fuzz_words().size())];
    switch (below(8)) {
      case 0: input.erase(at, length); break;
      case 1: input.insert(at, word); break;
      case 2: input.replace(at, length, word); break;
      case 3: input.insert(at, input.substr(below(input.size() + 1), below(64))); break;
      case 4: input.insert(at, 1, static_cast<char>(below(256))); break;
      case 5:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1U << below(8)));
        break;
      case 6: {
        const std::string& other = seeds_[below(seeds_.size())];
        input = input.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
      default: {  // another word in the place of one
        const std::size_t begin = input.find('"', at);
        const std::size_t end = begin == std::string::npos ? begin : input.find('"', begin + 1);
        if (end != std::string::npos) input.replace(begin, end + 1 - begin, word);
      }
    }
  }

  std::mt19937_64 random_{20251116};
  std::vector<std::string> seeds_;
};

void run_fuzz(const std::string& kind, void (*target)(std::string_view), std::int64_t inputs) {
  TokenizerMutator mutator(std::string(TESSERA_FUZZ_DATA) + "/" + kind);
  ASSERT_FALSE(mutator.empty());
  for (std::int64_t i = 0; i < inputs; ++i) target(mutator.next());
}

// Or all that is made of them would be refused at once.
TEST(TokenizerFuzz, FilesToBeginWithAreGood) {
  for (const char* name : {"gpt2", "split", "llama2", "metaspace"}) {
    const std::string path = std::string(TESSERA_FUZZ_DATA) + "/tokenizer/" + name + ".json";
    EXPECT_NO_THROW(parse_tokenizer(read_all(path), name)) << path;
  }
}

TEST(TokenizerFuzz, Files) { run_fuzz("tokenizer", fuzz_tokenizer, kInputs); }
TEST(TokenizerFuzz, Texts) { run_fuzz("encode", fuzz_encode, kInputs); }

}  // namespace
}  // namespace tessera::data
