// Feeds the readers of token folders and texts with inputs made from those in tests/data/fuzz by
// cutting, copying, flipping and inserting bytes that tend to break them. Deterministic.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/data/token_fuzz_targets.h"
#include "tests/fuzz_mutator.h"

namespace tessera::data {
namespace {

// Sanitizers make each input many times slower, so fewer are used.
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

void run_token_fuzz(const std::string& kind, void (*target)(std::string_view)) {
  tessera::run_fuzz(std::string(TESSERA_FUZZ_DATA) + "/" + kind, token_words(), target,
                    kTokenInputs);
}

TEST(TokenFuzz, SurvivesManifests) { run_token_fuzz("tokens", fuzz_tokens); }
TEST(TokenFuzz, SurvivesPrepareStates) { run_token_fuzz("prepare", fuzz_prepare); }
TEST(TokenFuzz, SurvivesBinFiles) { run_token_fuzz("bin", fuzz_bin); }
TEST(TokenFuzz, SurvivesJsonLines) { run_token_fuzz("jsonl", fuzz_jsonl); }
TEST(TokenFuzz, SurvivesLines) { run_token_fuzz("lines", fuzz_lines); }
TEST(TokenFuzz, SurvivesTexts) { run_token_fuzz("text", fuzz_text); }
TEST(TokenFuzz, SurvivesCompressedFiles) { run_token_fuzz("packed", fuzz_packed); }

}  // namespace
}  // namespace tessera::data
