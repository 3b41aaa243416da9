// Unsupported parts of a file that would change ids are rejected by name.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tests/data/tokenizer_files.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

using nlohmann::json;

struct Refused {
  const char* place;  // a JSON pointer
  const char* value;
  const char* named;  // text that the error must contain
};

void expect_refused(const json& file, const Refused& each) {
  json changed = file;
  changed[json::json_pointer(each.place)] = json::parse(each.value);
  const std::string error = error_of([&] { tokenizer_of(changed); });
  EXPECT_TRUE(contains(error, each.named)) << each.place << " = " << each.value << ": " << error;
  EXPECT_THROW(tokenizer_of(changed), DataError) << each.place;
}

TEST(Refused, RejectsUnsupportedFieldsByName) {
  const json file = byte_level_file("");
  EXPECT_NO_THROW(tokenizer_of(file));
  const std::vector<Refused> all = {
      {"/version", R"("2.0")", "version"},
      {"/news", "1", "news"},
      {"/model/type", R"("WordPiece")", "WordPiece"},
      {"/model/type", R"("Unigram")", "Unigram"},
      {"/model/dropout", "0.1", "dropout"},
      {"/model/continuing_subword_prefix", R"("##")", "continuing_subword_prefix"},
      {"/model/end_of_word_suffix", R"("</w>")", "end_of_word_suffix"},
      {"/model/fuse_unk", "1", "fuse_unk"},
      {"/model/extra", "true", "extra"},
      {"/model/vocab", "[]", "vocab"},
      {"/model/vocab/a", "-1", "vocab"},
      {"/model/vocab/a", "0", "has id 0"},
      {"/model/vocab/a", "1e3", "vocab"},
      {"/model/vocab/a", "400000000", "gaps"},
      {"/model/merges/0", R"(["a"])", "merges"},
      {"/model/merges/0", R"("ab")", "merges"},
      {"/model/merges/0", R"("a b c")", "merges"},
      {"/model/merges/0", R"(["a", "nowhere"])", "nowhere"},
      {"/model/merges/0", R"(["z", "z"])", "zz"},
      {"/added_tokens/0/id", "7", "<|endoftext|>"},
      {"/added_tokens/0/content", R"("")", "content"},
      {"/added_tokens/0/color", "1", "color"},
      {"/normalizer", R"({"type": "NFKC"})", "NFKC"},
      {"/normalizer", R"({"type": "Lowercase"})", "Lowercase"},
      {"/normalizer", R"({"type": "Replace", "pattern": {"String": ""}, "content": "x"})",
       "String"},
      {"/normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "x"})", "Precompiled"},
      {"/pre_tokenizer", R"({"type": "Whitespace"})", "Whitespace"},
      {"/pre_tokenizer", R"({"type": "BertPreTokenizer"})", "BertPreTokenizer"},
      {"/pre_tokenizer", R"({"type": "ByteLevel", "new_option": 1})", "new_option"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}, {"type": "Digits"}]})",
       "ByteLevel"},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"})", "replacement"},
      {"/pre_tokenizer",
       R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never",
           "add_prefix_space": true})",
       "add_prefix_space"},
      {"/pre_tokenizer",
       R"({"type": "Sequence", "pretokenizers": [{"type": "Digits"},
           {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]})",
       "first"},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}],
           "special_tokens": {}})",
       "\"A\""},
      {"/post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}},
           {"Sequence": {"id": "A"}}], "special_tokens": {}})",
       "<s>"},
      {"/post_processor",
       R"({"type": "RobertaProcessing", "sep": ["</s>", 99999], "cls": ["<s>", 1]})", "99999"},
      {"/decoder", R"({"type": "WordPiece"})", "WordPiece"},
      {"/decoder",
       R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"},
           {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})",
       "ByteFallback"},
      {"/decoder", R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": ""})", "String"},
  };
  for (const Refused& each : all) expect_refused(file, each);
  expect_refused(sentence_piece_file(), {"/model/unk_token", R"("<none>")", "<none>"});
  json unneeded = file;
  unneeded["model"]["unk_token"] = "<none>";
  EXPECT_NO_THROW(tokenizer_of(unneeded));
}

TEST(Refused, RejectsUnknownSplitBehaviorByName) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2: the pattern itself is rejected";
  expect_refused(
      byte_level_file(""),
      {"/pre_tokenizer",
       R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Odd", "invert": false})",
       "Odd"});
}

TEST(Refused, RejectsInvalidJsonAndDuplicates) {
  EXPECT_THROW(parse_tokenizer("", "t"), DataError);
  EXPECT_THROW(parse_tokenizer("[]", "t"), DataError);
  EXPECT_THROW(parse_tokenizer("{}", "t"), DataError);
  EXPECT_THROW(parse_tokenizer(R"({"model": {}, "model": {}})", "t"), DataError);
  EXPECT_THROW(parse_tokenizer(std::string(100'000, '['), "t"), DataError);
  json file = byte_level_file("");
  file["added_tokens"].push_back(file["added_tokens"][0]);
  EXPECT_TRUE(contains(error_of([&] { tokenizer_of(file); }), "twice"));
}

TEST(Patterns, RejectsSyntaxThatDiffersInPcre2) {
  for (const char* pattern :
       {"\\w+",       "\\bx",    "^a",          "a$",    "(?i)a",   "(?i:straße)", "(?i:ss)",
        "(?i:[a-z])", "(?<n>a)", "a{,3}",       "a{2}?", "a{1,2}+", "a**",         "[[:alpha:]]",
        "[a&&b]",     "[a[b]]",  "[]a]",        "\\1",   "\\h",     "\\R",         "\\X",
        "\\p{Emoji}", "\\p{^L}", "\\pL",        "(a",    "a)",      "[a",          "a\\",
        "*a",         "\\xff",   "\\x{110000}", "[z-a]", "[\\s-a]", "(*UTF)",      "(?#x)",
        "(?R)",       "\\K",     "a|*"}) {
    EXPECT_THROW(translate_pattern(pattern, "t"), DataError) << pattern;
  }
  for (const char* pattern :
       {kGpt2Pattern, kLlama3Pattern, "(?>a|b)++c", "(?<=a)b", "[^\\S\\r\\n]+", "a{2,}?",
        "\\x{1F600}", "\\u00e9", "[\\p{Han}\\d\\-.]", "a.b", "[a-]", "日+", "\\P{L}"}) {
    EXPECT_NO_THROW(translate_pattern(pattern, "t")) << pattern;
  }
}

TEST(Patterns, StopsRunawayPatterns) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2";
  const auto pattern = regex_pattern("(?:a+)+[bd]", "t");
  PatternScratch scratch;
  PatternMatch match;
  const std::string text = std::string(200, 'a') + "c";
  EXPECT_THROW(pattern->find(text, 0, match, scratch), DataError);
  EXPECT_THROW(regex_pattern("a*", "t"), DataError);  // matches the empty text everywhere
  EXPECT_THROW(regex_pattern("(?<=a+)b", "t"), DataError);
}

// Each match is fast, but there are as many as characters: half a minute without a limit.
TEST(Patterns, BoundsTheWorkOnOneText) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2";
  for (const char* pattern : {"a+b|a", "(?:a|aa)*b|a"}) {
    const auto tokenizer = tokenizer_of(byte_level_file(pattern));
    const std::string error = error_of([&] { ids_of(*tokenizer, std::string(200'000, 'a')); });
    EXPECT_TRUE(contains(error, "t.json, pre_tokenizer")) << pattern << error;
    // Ordinary texts, and the next text, are encoded.
    EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, std::string(2'000, 'a') + "b c")),
              std::string(2'000, 'a') + "b c");
  }
  // Long runs matched at once are cheap.
  const auto tokenizer = tokenizer_of(byte_level_file("\\p{L}+|[^\\p{L}]+"));
  EXPECT_FALSE(ids_of(*tokenizer, std::string(1 << 20, 'x')).empty());
}

TEST(Steps, BoundTheOutputByTheSizeOfTheText) {
  json file = byte_level_file("");
  json steps = json::array();
  for (int i = 0; i < 32; ++i) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "n"}}}, {"content", "nn"}});
  }
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  const auto grows = tokenizer_of(file);
  EXPECT_EQ(grows->decode(ids_of(*grows, "xyz")), "xyz");
  const std::string error = error_of([&] { ids_of(*grows, "banana"); });
  EXPECT_TRUE(contains(error, "normalizer")) << error;
  EXPECT_TRUE(contains(error, "of a text of 6 bytes")) << error;
  file["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(100'000, 'x')}};
  EXPECT_TRUE(contains(error_of([&] { ids_of(*tokenizer_of(file), "b"); }), "normalizer"));
  // The same for a decoder, which is applied to every token when the file is read.
  file = byte_level_file("");
  file["decoder"] = {{"type", "Sequence"}, {"decoders", steps}};
  EXPECT_TRUE(contains(error_of([&] { tokenizer_of(file); }), "decoder"));
}

// Compares the code for known patterns with PCRE2, which gets a text a few hundred bytes at a time.
TEST(Patterns, FindsLongMatchesLikeOnTheWholeText) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2";
  for (const char* regex : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    const auto quick = regex_pattern(regex, "t"), plain = regex_pattern(regex, "t", true);
    PatternScratch scratch;
    std::uint64_t seed = 0;
    for (const char* unit : {"x", " ", "é", "\n", "7", "!", "日", " \n", "\t "}) {
      for (int count = 100; count < 530; count += 13) {
        std::string text = random_text(++seed, 7);
        for (int i = 0; i < count; ++i) text += unit;
        text += random_text(++seed, 7);
        PatternMatch a, b;
        for (std::size_t at = 0; at < text.size(); at = b.end) {
          ASSERT_TRUE(quick->find(text, at, a, scratch) && plain->find(text, at, b, scratch));
          ASSERT_EQ(a.begin, b.begin) << regex << " in " << text;
          ASSERT_EQ(a.end, b.end) << regex << " at " << at << " in " << text;
        }
      }
    }
  }
  // Later bytes decide the match: a lookahead, and an alternative that comes first.
  PatternScratch scratch;
  PatternMatch match;
  const std::string run(1000, 'a');
  const auto ahead = regex_pattern("a+(?=b)|a", "t");
  EXPECT_TRUE(ahead->find(run + "b", 0, match, scratch));
  EXPECT_EQ(match.end, 1000u);
  EXPECT_TRUE(ahead->find(run + "c", 0, match, scratch));
  EXPECT_EQ(match.end, 1u);
  const auto far = regex_pattern("(?<=a)b", "t");
  EXPECT_TRUE(far->find(run + "b", 3, match, scratch));
  EXPECT_EQ(match.begin, 1000u);
  EXPECT_FALSE(far->find(run + "c", 3, match, scratch));
}

// Compares the code for known patterns with PCRE2.
TEST(Patterns, KnownPatternsMatchLikePcre2) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2";
  for (const char* regex : {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern}) {
    const auto quick = regex_pattern(regex, "t"), plain = regex_pattern(regex, "t", true);
    PatternScratch scratch;
    for (std::uint64_t seed = 0; seed < 4000; ++seed) {
      const std::string text = random_text(seed, static_cast<int>(seed % 30));
      PatternMatch a, b;
      for (std::size_t at = 0; at < text.size(); at = b.end) {
        ASSERT_TRUE(quick->find(text, at, a, scratch) && plain->find(text, at, b, scratch));
        ASSERT_EQ(a.begin, b.begin) << regex << " in " << text;
        ASSERT_EQ(a.end, b.end) << regex << " at " << at << " in " << text;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::data
