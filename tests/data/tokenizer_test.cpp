#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/chat_template.h"
#include "tessera/data/unicode.h"
#include "tests/data/tokenizer_files.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

using nlohmann::json;

TEST(ByteTokenizer, RoundTripsAnyBytes) {
  const auto tokenizer = load_tokenizer("bytes");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::vector<TokenId> ids = ids_of(*tokenizer, all);
  ASSERT_EQ(ids.size(), 256u);
  for (TokenId i = 0; i < 256; ++i) EXPECT_EQ(ids[i], i);
  EXPECT_EQ(tokenizer->decode(ids), all);
  EXPECT_EQ(tokenizer->vocab(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256u);
  EXPECT_TRUE(tokenizer->is_special(256));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{65, 256, 66}), "AB");
  EXPECT_THROW(tokenizer->decode(std::vector<TokenId>{257}), DataError);
}

TEST(CleanUtf8, ReplacesLongestPrefixesOfCharacters) {
  const std::string bad = "\xef\xbf\xbd";
  const std::vector<std::array<std::string, 2>> cases = {
      {"", ""},
      {"abc é 日 😀", "abc é 日 😀"},
      {"a\xff z", "a" + bad + " z"},
      {"\xc3", bad},
      {"\xe2\x82", bad},  // a truncated character, replaced once
      {"\xe2\x82x", bad + "x"},
      {"\xf0\x9f\x98x", bad + "x"},
      {"\xc0\x80", bad + bad},                      // overlong zero
      {"\xed\xa0\x80", bad + bad + bad},            // a surrogate
      {"\xf4\x90\x80\x80", bad + bad + bad + bad},  // above U+10FFFF
      {"\x80\x80", bad + bad},
      {"\xe0\x80\xaf", bad + bad + bad}};
  for (const auto& [text, wanted] : cases) {
    std::string storage;
    const CleanText clean = clean_utf8(text, BadUtf8::replace, storage);
    EXPECT_EQ(clean.text, wanted) << quote(text);
    std::int64_t marks = 0;
    for (std::size_t at = wanted.find(bad); at != std::string::npos; at = wanted.find(bad, at + 1))
      ++marks;
    EXPECT_EQ(clean.replaced, marks) << quote(text);
    if (text == wanted) {
      EXPECT_EQ(clean.text.data(), std::string_view(text).data());  // no copy
    }
  }
}

TEST(CleanUtf8, RejectsWithTheOffset) {
  std::string storage;
  EXPECT_NO_THROW(clean_utf8("é", BadUtf8::refuse, storage));
  const std::string error =
      error_of([&] { clean_utf8("0123456789\xff", BadUtf8::refuse, storage); });
  EXPECT_TRUE(contains(error, "offset 10") && contains(error, "ff")) << error;
}

TEST(Normalize, NormalizesKnownTexts) {
  EXPECT_EQ(normalize("e\u0301", true), "\u00e9");
  EXPECT_EQ(normalize("\u00e9", false), "e\u0301");
  EXPECT_EQ(normalize("\u212b", true), "\u00c5");                // Ångström sign
  EXPECT_EQ(normalize("q\u0307\u0323", true), "q\u0323\u0307");  // ordered by combining class
  EXPECT_EQ(normalize("\u1e9b\u0323", true), "\u1e9b\u0323");
  EXPECT_EQ(normalize("\u1112\u1161\u11ab", true), "\ud55c");
  EXPECT_EQ(normalize("\ud55c", false), "\u1112\u1161\u11ab");
  EXPECT_EQ(normalize("\u0958", true), "\u0915\u093c");  // excluded from composition
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::string text = random_text(seed, 20);
    const std::string composed = normalize(text, true), parts = normalize(text, false);
    EXPECT_EQ(normalize(composed, true), composed);
    EXPECT_EQ(normalize(parts, false), parts);
    EXPECT_EQ(normalize(parts, true), composed);
    EXPECT_EQ(normalize(composed, false), parts);
    if (surely_normal(text, true)) {
      EXPECT_EQ(text, composed);
    }
  }
}

TEST(ByteLevel, RoundTripsAndFindsSpecialTokens) {
  for (const char* pattern : {"", kLlama3Pattern, kQwen2Pattern}) {
    const auto tokenizer = tokenizer_of(byte_level_file(pattern));
    const TokenId end = *tokenizer->find("<|endoftext|>");
    EXPECT_TRUE(tokenizer->is_special(end));
    EXPECT_EQ(ids_of(*tokenizer, "<|endoftext|>"), std::vector<TokenId>{end});
    EXPECT_GT(ids_of(*tokenizer, "<|endoftext|>", {.special = false}).size(), 1u);
    EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{end, 'a'}, true), "a");
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      const std::string text = random_text(seed, static_cast<int>(seed % 40));
      for (const bool special : {true, false}) {
        const std::vector<TokenId> ids = ids_of(*tokenizer, text, {.special = special});
        EXPECT_EQ(tokenizer->decode(ids), text);
        for (const TokenId id : ids) ASSERT_LT(id, tokenizer->vocab());
      }
    }
    EXPECT_THROW(ids_of(*tokenizer, "\xff"), DataError);
    EXPECT_THROW(tokenizer->decode(std::vector<TokenId>{1u << 30}), DataError);
  }
}

TEST(SentencePiece, EncodesUnknownCharactersAsBytes) {
  const auto tokenizer = tokenizer_of(sentence_piece_file());
  const auto tokens = [&](const std::string& text) {
    std::vector<std::string> out;
    for (const TokenId id : ids_of(*tokenizer, text)) {
      out.push_back(tokenizer->decode(std::vector<TokenId>{3 + 'x', id}).substr(1));
    }
    return out;
  };
  using Texts = std::vector<std::string>;
  EXPECT_EQ(tokens("the fox"), (Texts{" ", "the", " fox"}));
  EXPECT_EQ(tokens("in😀"), (Texts{" ", "in", "\xf0", "\x9f", "\x98", "\x80"}));
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    std::string text = random_text(seed, static_cast<int>(1 + seed % 30));
    if (contains(text, "▁") || contains(text, "<s>")) continue;  // would be decoded as spaces
    EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, text)), text);
  }
}

// Marks for spaces are added at the start of a text, after a token as the file specifies, and never
// where a text continues.
TEST(SentencePiece, AddsNoMarkWhereATextContinues) {
  using Behind = EncodeOptions::Behind;
  json files[] = {sentence_piece_file(), sentence_piece_file(), sentence_piece_file()};
  for (int i = 1; i < 3; ++i) {
    files[i]["normalizer"] = nullptr;
    files[i]["pre_tokenizer"] = {{"type", "Metaspace"},
                                 {"replacement", "▁"},
                                 {"prepend_scheme", i == 1 ? "always" : "first"},
                                 {"split", true}};
  }
  for (const json& file : files) {
    const auto tokenizer = tokenizer_of(file);
    EXPECT_TRUE(tokenizer->may_cut_at_space());
    const TokenId end = *tokenizer->find("</s>");
    const bool first = &file == &files[2];
    const auto texts = [&](std::string_view text, Behind behind) {
      std::string all;
      for (const TokenId id : ids_of(*tokenizer, text, {.special = false, .behind = behind})) {
        all += str(all.empty() ? "" : "|", tokenizer->decode(std::vector<TokenId>{end, id}));
      }
      return all;
    };
    EXPECT_EQ(texts("the fox", Behind::nothing), texts(" the fox", Behind::text));
    EXPECT_NE(texts("the fox", Behind::text), texts("the fox", Behind::nothing));
    EXPECT_EQ(texts("the fox", Behind::token),
              texts("the fox", first ? Behind::text : Behind::nothing));
    // After a token in the text, and after one that was added.
    std::vector<TokenId> wanted = ids_of(*tokenizer, "a</s>the fox"), got = ids_of(*tokenizer, "a");
    got.push_back(end);
    tokenizer->encode("the fox", got, {.behind = Behind::token});
    EXPECT_EQ(got, wanted);
  }
  json with_space = sentence_piece_file();
  with_space["added_tokens"][2]["rstrip"] = true;
  EXPECT_FALSE(tokenizer_of(with_space)->may_cut_at_space());
  EXPECT_FALSE(tokenizer_of(byte_level_file(""))->may_cut_at_space());
  json unmarked = sentence_piece_file();  // only its tokens contain the marks
  unmarked["normalizer"] = nullptr;
  EXPECT_FALSE(tokenizer_of(unmarked)->may_cut_at_space());
}

// A conversation has the tokens of its text, however it is assembled.
TEST(SentencePiece, EncodesConversationsLikeTheirText) {
  const auto tokenizer = tokenizer_of(sentence_piece_file());
  const TokenId end = *tokenizer->find("</s>");
  const ChatTemplate plain("plain", *tokenizer, end);
  std::vector<TokenId> ids;
  std::vector<std::uint8_t> learned;
  std::uint64_t bytes = 0;
  ChatTemplate::Out out{ids, learned, bytes};
  plain.append(
      {{"user", "the fox"}, {"assistant", "a fox"}, {"user", "\n\nthe"}, {"assistant", "in"}},
      {.special = false}, out);
  EXPECT_EQ(ids,
            ids_of(*tokenizer,
                   "User: the fox\n\nAssistant: a fox</s>\n\nUser: \n\nthe\n\nAssistant: in</s>"));
  ASSERT_EQ(learned.size(), ids.size());
  std::vector<TokenId> said;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (learned[i] != 0) said.push_back(ids[i]);
  }
  EXPECT_EQ(tokenizer->decode(said), "a fox</s> in</s>");
}

TEST(Files, ReadsMergesInBothForms) {
  json file = byte_level_file("");
  const auto pairs = tokenizer_of(file);
  for (json& merge : file["model"]["merges"]) {
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  const auto strings = tokenizer_of(file);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::string text = random_text(seed, 20);
    EXPECT_EQ(ids_of(*pairs, text), ids_of(*strings, text));
  }
}

TEST(Files, HandlesSpacesAndWordsAroundAddedTokens) {
  json file = byte_level_file("");
  const auto add = [&](const char* content, const char* flag) {
    json token = {{"id", file["model"]["vocab"].size() + file["added_tokens"].size()},
                  {"content", content},
                  {"special", false},
                  {"normalized", false}};
    if (flag[0] != '\0') token[flag] = true;
    file["added_tokens"].push_back(token);
    return token["id"].get<TokenId>();
  };
  const TokenId left = add("<left>", "lstrip"), right = add("<right>", "rstrip");
  const TokenId alone = add("tok", "single_word"), longer = add("<left>>", "");
  const auto tokenizer = tokenizer_of(file);
  const auto counts = [&](const std::string& text) {
    std::vector<TokenId> out;
    for (const TokenId id : ids_of(*tokenizer, text)) {
      if (id >= left) out.push_back(id);
    }
    return out;
  };
  using Ids = std::vector<TokenId>;
  EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, "a  <left>  b")), "a<left>  b");
  EXPECT_EQ(tokenizer->decode(ids_of(*tokenizer, "a  <right>\n b")), "a  <right>b");
  EXPECT_EQ(counts("tok a-tok, token étok tok"), (Ids{alone, alone, alone}));
  EXPECT_EQ(counts("<left>><left>"), (Ids{longer, left}));
  EXPECT_EQ(counts("<right> <left>"), (Ids{right, left}));
}

TEST(Files, AddsTheTokensOfThePostProcessor) {
  json file = sentence_piece_file();
  file["post_processor"] = json::parse(R"({"type": "TemplateProcessing", "single": [
      {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
      {"SpecialToken": {"id": "</s>", "type_id": 0}}], "pair": [], "special_tokens": {
      "<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
      "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}})");
  const auto tokenizer = tokenizer_of(file);
  const std::vector<TokenId> plain = ids_of(*tokenizer, "the");
  const std::vector<TokenId> around = ids_of(*tokenizer, "the", {.around = true});
  std::vector<TokenId> wanted = {1};
  wanted.insert(wanted.end(), plain.begin(), plain.end());
  wanted.push_back(2);
  EXPECT_EQ(around, wanted);
  EXPECT_EQ(ids_of(*tokenizer, "", {.around = true}), (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(tokenizer->before_text(), (std::vector<TokenId>{1}));
  EXPECT_TRUE(tokenizer_of(sentence_piece_file())->before_text().empty());
}

// Settings of the last call, which libraries leave in the file.
TEST(Files, IgnoresTruncationAndPaddingWithANote) {
  json file = byte_level_file("");
  const auto plain = tokenizer_of(file);
  EXPECT_TRUE(plain->notes().empty());
  file["truncation"] = json::parse(R"({"direction": "Right", "max_length": 3,
      "strategy": "LongestFirst", "stride": 0})");
  file["padding"] = json::parse(R"({"strategy": {"Fixed": 9}, "direction": "Right",
      "pad_to_multiple_of": null, "pad_id": 0, "pad_type_id": 0, "pad_token": "x"})");
  const auto other = tokenizer_of(file);
  EXPECT_EQ(ids_of(*other, "the fox says what?"), ids_of(*plain, "the fox says what?"));
  EXPECT_EQ(other->fingerprint(), plain->fingerprint());
  ASSERT_EQ(other->notes().size(), 2u);
  EXPECT_TRUE(contains(other->notes()[0], "truncation")) << other->notes()[0];
  EXPECT_TRUE(contains(other->notes()[1], "padding")) << other->notes()[1];
}

TEST(Files, FingerprintCoversWhatDeterminesIds) {
  const json file = byte_level_file("");
  const auto print = [](const json& each, int indent) {
    return parse_tokenizer(each.dump(indent), "t").fingerprint;
  };
  EXPECT_EQ(print(file, -1), print(file, 4));
  EXPECT_EQ(print(file, -1).size(), 64u);
  json other = file;
  std::swap(other["model"]["merges"][0], other["model"]["merges"][1]);
  EXPECT_NE(print(file, -1), print(other, -1));
  other = file;
  other["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_NE(print(file, -1), print(other, -1));
}

TEST(Files, EncodesTheSameOnManyThreads) {
  if (!have_pcre2()) GTEST_SKIP() << "built without PCRE2, which matches this pattern";
  const auto tokenizer = tokenizer_of(byte_level_file("\\p{L}+|[^\\p{L}]"));
  std::vector<std::vector<TokenId>> alone(60);
  for (std::size_t i = 0; i < alone.size(); ++i) alone[i] = ids_of(*tokenizer, random_text(i, 40));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < alone.size(); ++i) {
        EXPECT_EQ(ids_of(*tokenizer, random_text(i, 40)), alone[i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Folder : public ::testing::Test {
 protected:
  void SetUp() override { write("tokenizer.json", sentence_piece_file()); }
  void write(const std::string& name, const json& value) {
    std::ofstream(path_ + "/" + name) << value.dump();
  }
  const TemporaryFolder folder_;
  const std::string& path_ = folder_.path;
};

TEST_F(Folder, ReadsBeginAndEndTokensFromOtherFiles) {
  EXPECT_EQ(load_tokenizer(path_)->end_of_text(), std::nullopt);
  write("config.json", {{"eos_token_id", 2}, {"bos_token_id", 1}});
  EXPECT_EQ(load_tokenizer(path_)->end_of_text(), 2u);
  EXPECT_EQ(load_tokenizer(path_ + "/tokenizer.json")->begin_of_text(), 1u);
  write("generation_config.json", {{"eos_token_id", {0, 2}}});
  EXPECT_EQ(load_tokenizer(path_)->end_of_text(), 0u);
  write("tokenizer_config.json", {{"eos_token", "<s>"}, {"bos_token", {{"content", "</s>"}}}});
  EXPECT_EQ(load_tokenizer(path_)->end_of_text(), 1u);
  EXPECT_EQ(load_tokenizer(path_)->begin_of_text(), 2u);
}

TEST_F(Folder, RejectsFilesOfAnotherModel) {
  write("tokenizer_config.json", {{"eos_token", "<|im_end|>"}});
  EXPECT_TRUE(contains(error_of([&] { load_tokenizer(path_); }), "another model"));
  write("tokenizer_config.json", json::object());
  write("config.json", {{"eos_token_id", 128001}});
  EXPECT_TRUE(contains(error_of([&] { load_tokenizer(path_); }), "another model"));
}

TEST_F(Folder, RejectsMissingFiles) {
  EXPECT_THROW(load_tokenizer(path_ + "/other"), UsageError);
  std::filesystem::remove(path_ + "/tokenizer.json");
  EXPECT_THROW(load_tokenizer(path_), UsageError);
  std::ofstream(path_ + "/tokenizer.json") << "";
  EXPECT_THROW(load_tokenizer(path_), DataError);
}

}  // namespace
}  // namespace tessera::data
