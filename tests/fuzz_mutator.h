#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/text.h"

namespace tessera {

// Generator of inputs: mutates the files of a folder by cutting, copying, flipping bits and
// inserting words that tend to break parsers. Deterministic.
class Mutator {
 public:
  Mutator(const std::string& folder, std::vector<std::string> words) : words_(std::move(words)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      seeds_.push_back(read_all(entry.path().string()));
    }
    std::sort(seeds_.begin(), seeds_.end());
  }
  bool empty() const { return seeds_.empty(); }
  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t left = below(7); left > 0; --left) mutate(input);
    if (input.size() > 4096) input.resize(4096);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  void mutate(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, below(16) + 1);
    const std::string& word = words_[below(words_.size())];
    switch (below(10)) {
      case 0: input.erase(at, length); break;
      case 1: input.insert(at, word); break;
      case 2: input.replace(at, length, word); break;
      case 3: input.insert(at, input.substr(below(input.size() + 1), below(64))); break;
      case 4: input.insert(at, 1, static_cast<char>(below(256))); break;
      case 5:
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        break;
      case 6:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1U << below(8)));
        break;
      case 7: {  // continues with the rest of another file
        const std::string& other = seeds_[below(seeds_.size())];
        input = input.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
      case 8: {  // replaces a number
        const std::size_t digit = input.find_first_of("0123456789", at);
        if (digit == std::string::npos) break;
        const std::size_t end = input.find_first_not_of("0123456789", digit);
        input.replace(digit, end == std::string::npos ? end : end - digit, word);
        break;
      }
      default: {  // replaces a string
        const std::size_t begin = input.find('"', at);
        const std::size_t end = begin == std::string::npos ? begin : input.find('"', begin + 1);
        if (end != std::string::npos) input.replace(begin, end + 1 - begin, word);
      }
    }
  }

  std::mt19937_64 random_{20261116};
  std::vector<std::string> seeds_, words_;
};

inline void run_fuzz(const std::string& folder, const std::vector<std::string>& words,
                     void (*target)(std::string_view), std::int64_t inputs) {
  Mutator mutator(folder, words);
  ASSERT_FALSE(mutator.empty());
  for (std::int64_t i = 0; i < inputs; ++i) target(mutator.next());
}

}  // namespace tessera
