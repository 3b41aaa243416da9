#include "tessera/data/bpe.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/data/tokenizer_files.h"

namespace tessera::data {
namespace {

// Random merges over a few letters, so that they overlap in every way.
BpeModel random_model(std::uint64_t seed, bool byte_level) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  BpeModel model;
  model.byte_level = byte_level;
  std::vector<std::string> tokens = {"a", "b", "c", "▁"};
  if (byte_level) tokens.back() = byte_alphabet().of_byte[' '];
  for (const std::string& token : tokens) model.ids.emplace(token, model.ids.size());
  if (seed % 2 == 0) {
    model.ids.emplace("<unk>", model.ids.size());
    model.unknown = model.ids.at("<unk>");
    model.fuse_unknown = seed % 4 == 0;
  }
  model.ignore_merges = seed % 5 == 0;
  const std::size_t merges = 1 + below(40);
  for (std::size_t i = 0; i < merges; ++i) {
    const std::string left = tokens[below(tokens.size())], right = tokens[below(tokens.size())];
    if (left.size() + right.size() > 12) continue;
    if (model.ids.emplace(left + right, model.ids.size()).second) tokens.push_back(left + right);
    model.merges.push_back({model.ids.at(left), model.ids.at(right), model.ids.at(left + right)});
  }
  return model;
}

std::string random_word(std::mt19937_64& random, std::size_t most, bool byte_level) {
  const std::vector<std::string> letters = {"a", "b", "c", byte_level ? " " : "▁", "x", "é"};
  std::string out;
  for (std::size_t left = random() % most; left > 0; --left) {
    out += letters[std::min<std::size_t>(random() % 9, 5)];
  }
  return out;
}

TEST(Bpe, MatchesTheReference) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const bool byte_level = seed % 3 == 0;
    const Bpe bpe(random_model(seed, byte_level));
    Bpe::Scratch scratch;
    std::mt19937_64 random(seed + 1000);
    for (int i = 0; i < 60; ++i) {
      // Short words twice, so that the cache is used; longer ones use the queue.
      const std::string word = random_word(random, i % 10 == 0 ? 300 : 14, byte_level);
      std::vector<TokenId> slow, quick, again;
      bpe.encode_reference(word, slow);
      bpe.encode(word, scratch, quick);
      bpe.encode(word, scratch, again);
      ASSERT_EQ(quick, slow) << seed << " " << word;
      ASSERT_EQ(again, slow) << seed << " " << word;
    }
  }
}

TEST(Bpe, EncodesLongRunsFast) {
  BpeModel model = random_model(1, true);
  model.merges.clear();
  std::string token = "a";
  for (int i = 0; i < 8; ++i) {
    model.ids.emplace(token + token, model.ids.size());
    model.merges.push_back({model.ids.at(token), model.ids.at(token), model.ids.at(token + token)});
    token += token;
  }
  const Bpe bpe(model);
  Bpe::Scratch scratch;
  std::vector<TokenId> out;
  bpe.encode(std::string(200'000, 'a'), scratch, out);
  EXPECT_EQ(out.size(), 200'000u / 256 + 1);  // plus 64 at the end
  EXPECT_EQ(out.back(), model.ids.at(std::string(64, 'a')));
}

TEST(Bpe, MayCutBeforeMarksThatAreNeverMerged) {
  int cut = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const BpeModel model = random_model(seed, false);
    if (!may_cut_before(model, "▁")) continue;
    ++cut;
    const Bpe bpe(model);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 30; ++i) {
      const std::string left = random_word(random, 9, false) + "b";
      const std::string right = "▁" + random_word(random, 9, false);
      std::vector<TokenId> whole, parts;
      bpe.encode_reference(left + right, whole);
      bpe.encode_reference(left, parts);
      bpe.encode_reference(right, parts);
      ASSERT_EQ(whole, parts) << left << " " << right;
    }
  }
  EXPECT_GT(cut, 5);
}

TEST(Bpe, MapsBytesToTheAlphabetAndBack) {
  const ByteAlphabet& alphabet = byte_alphabet();
  EXPECT_EQ(alphabet.of_byte[' '], "Ġ");
  EXPECT_EQ(alphabet.of_byte['\n'], "Ċ");
  EXPECT_EQ(alphabet.of_byte['a'], "a");
  EXPECT_EQ(alphabet.of_byte[0xad], "Ń");
  std::string bytes;
  EXPECT_TRUE(alphabet.bytes("ĠaĊ", bytes));
  EXPECT_EQ(bytes, " a\n");
  EXPECT_FALSE(alphabet.bytes("日", bytes));
}

}  // namespace
}  // namespace tessera::data
