// Feeds the parser of tokenizer.json and the encoder with inputs made from those in tests/data/fuzz
// by cutting, copying, flipping and inserting bytes that tend to break them. Deterministic.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/data/tokenizer_spec.h"
#include "tests/data/tokenizer_fuzz_targets.h"
#include "tests/fuzz_mutator.h"
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

void run_tokenizer_fuzz(const std::string& kind, void (*target)(std::string_view),
                        std::int64_t inputs) {
  tessera::run_fuzz(std::string(TESSERA_FUZZ_DATA) + "/" + kind, fuzz_words(), target, inputs);
}

void expect_good(const std::string& name) {
  const std::string path = std::string(TESSERA_FUZZ_DATA) + "/tokenizer/" + name + ".json";
  EXPECT_NO_THROW(parse_tokenizer(read_all(path), name)) << path;
}

// Otherwise all inputs made from them would be rejected at once.
TEST(TokenizerFuzz, SeedFilesAreValid) {
  for (const char* name : {"gpt2", "llama2", "metaspace"}) expect_good(name);
}
TEST(TokenizerFuzz, SeedFileWithAPatternIsValid) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2, which matches its pattern";
  expect_good("split");
}

TEST(TokenizerFuzz, SurvivesTokenizerFiles) {
  run_tokenizer_fuzz("tokenizer", fuzz_tokenizer, kInputs);
}
TEST(TokenizerFuzz, SurvivesTexts) { run_tokenizer_fuzz("encode", fuzz_encode, kInputs); }

}  // namespace
}  // namespace tessera::data
