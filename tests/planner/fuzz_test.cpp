// Feeds the parsers with inputs made from those in tests/data/fuzz by cutting, copying, flipping
// and putting in what tends to break parsers. The same inputs every time.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/planner/fuzz_targets.h"

namespace tessera::planner {
namespace {

constexpr std::int64_t kInputs = TESSERA_FUZZ_INPUTS;

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {"0",
                                               "-1",
                                               "1",
                                               "2",
                                               "64",
                                               "65536",
                                               "2147483648",
                                               "9223372036854775807",
                                               "1e308",
                                               "1e-308",
                                               "1e999",
                                               "nan",
                                               "inf",
                                               "null",
                                               "true",
                                               "false",
                                               "\"\"",
                                               "{",
                                               "}",
                                               "[",
                                               "]",
                                               "{}",
                                               ":",
                                               ",",
                                               "\"",
                                               "\\u0000",
                                               "\\ud800",
                                               "\xff",
                                               "\xc3\xa9",
                                               "\n",
                                               "\r\n",
                                               "\t",
                                               "#",
                                               "=",
                                               "'",
                                               "\"\"\"",
                                               "'''",
                                               ".a.a.a",
                                               "\"dp\":",
                                               "\"pp\":",
                                               "\"tp\":",
                                               "\"layers\":",
                                               "\"params\":\"13B\"",
                                               "\"chunks\":",
                                               "\"schedule\":\"zb-v\"",
                                               "\"global_batch\":",
                                               "\"zero\":3",
                                               "\"layout\":\"2,6,12\"",
                                               "\"model\":\"llama3-8b\"",
                                               "\"sequence_parallel\":true",
                                               "\"hardware\":\"cpu\"",
                                               "step_ms",
                                               "like",
                                               "inside",
                                               "80GiB",
                                               "100Gb/s",
                                               "3us"};
  return all;
}

class Mutator {
 public:
  explicit Mutator(const std::string& folder) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::stringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      seeds_.push_back(text.str());
    }
    std::sort(seeds_.begin(), seeds_.end());
  }
  bool empty() const { return seeds_.empty(); }

  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (std::size_t left = 1 + below(6); left > 0; --left) mutate(input);
    if (input.size() > 4096) input.resize(4096);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  void mutate(std::string& input) {
    const std::size_t at = below(input.size() + 1);
    const std::size_t length = std::min(input.size() - at, below(16) + 1);
    switch (below(7)) {
      case 0: input.erase(at, length); break;
      case 1: input.insert(at, words()[below(words().size())]); break;
      case 2: input.replace(at, length, words()[below(words().size())]); break;
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
    }
  }

  std::mt19937_64 random_{20240607};
  std::vector<std::string> seeds_;
};

void run(const std::string& kind, void (*target)(std::string_view), std::int64_t inputs) {
  Mutator mutator(std::string(TESSERA_FUZZ_DATA) + "/" + kind);
  ASSERT_FALSE(mutator.empty());
  for (std::int64_t i = 0; i < inputs; ++i) target(mutator.next());
}

TEST(Fuzz, LinesOfBatch) { run("line", fuzz_line, kInputs / 2); }
TEST(Fuzz, FilesOfRuns) { run("runs", fuzz_runs, kInputs / 4); }
TEST(Fuzz, FilesOfHardware) { run("hardware", fuzz_hardware, kInputs / 4); }

}  // namespace
}  // namespace tessera::planner
