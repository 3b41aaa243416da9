// Token folders and .bin files: round trips and errors.

#include "tessera/data/token_data.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tessera/checkpoint/checksum.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/data/token_folders.h"

namespace tessera::data {
namespace {

void expect_same(const TokenData& data, const Expected& expected, bool masked) {
  std::vector<std::int64_t> all;
  std::vector<std::uint8_t> learned;
  ASSERT_EQ(data.documents(), expected.documents.size());
  for (std::size_t d = 0; d < expected.documents.size(); ++d) {
    const Document document = data.document(d);
    ASSERT_EQ(document.begin, all.size()) << d;
    all.insert(all.end(), expected.documents[d].begin(), expected.documents[d].end());
    learned.insert(learned.end(), expected.learned[d].begin(), expected.learned[d].end());
    ASSERT_EQ(document.end, all.size()) << d;
    ASSERT_EQ(data.document_at(document.begin), d);
    ASSERT_EQ(data.document_at(document.end - 1), d);
  }
  ASSERT_EQ(data.tokens(), all.size());
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const std::size_t begin = i == 0 ? 0 : random() % (all.size() + 1);
    const std::size_t count = i == 0 ? all.size() : random() % (all.size() - begin + 1);
    std::vector<std::int64_t> ids(count, -1);
    std::vector<std::uint8_t> mask(count, 7);
    data.read(begin, ids);
    data.read_mask(begin, mask);
    for (std::size_t k = 0; k < count; ++k) {
      ASSERT_EQ(ids[k], all[begin + k]) << begin << " " << k;
      ASSERT_EQ(mask[k], masked ? learned[begin + k] : 1) << begin << " " << k;
    }
  }
}

TEST(TokenData, ReadsWhatWasWritten) {
  for (const std::int64_t vocab : {65536, 65537}) {
    for (const bool masked : {false, true}) {
      for (const std::int64_t shard_bytes : {2, 400, 1'000'000}) {
        for (const std::size_t part : {1, 29, 64, 100'000}) {
          SCOPED_TRACE(str("vocab ", vocab, masked, " shards ", shard_bytes, " parts ", part));
          const QuickFolder dir;
          const Expected expected = random_documents(7 + part, 40, vocab);
          const TokenManifest manifest =
              write_folder(dir.path, expected, vocab, masked, part, shard_bytes);
          ASSERT_TRUE(is_token_data(dir.path));
          const auto data = open_tokens(dir.path);
          EXPECT_EQ(data->vocab(), vocab);
          EXPECT_EQ(data->fingerprint(), "none");
          EXPECT_EQ(data->bytes_of_text(), 17u);
          EXPECT_EQ(data->masked(), masked);
          expect_same(*data, expected, masked);
          verify_tokens(*data);
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Around the page cache: parts of any size that start and end anywhere in a block.
TEST(TokenData, WritesTheSameFilesDirectly) {
  const QuickFolder dir;
  std::mt19937_64 random(5);
  for (const std::int64_t vocab : {40'000, 200'000}) {
    Expected expected;
    for (int d = 0; d < 30; ++d) {
      expected.documents.emplace_back(1 + random() % 4000);
      for (std::int64_t& id : expected.documents.back()) {
        id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(vocab));
      }
      expected.learned.emplace_back(expected.documents.back().size(), 1);
    }
    for (const std::size_t part : {700, 2048, 5001, 30'000}) {
      const std::string plain = dir / str("plain", vocab, "-", part);
      const std::string direct = dir / str("direct", vocab, "-", part);
      write_folder(plain, expected, vocab, false, part, 100'000);
      write_folder(direct, expected, vocab, false, part, 100'000, 4096);
      EXPECT_TRUE(files_of(plain) == files_of(direct)) << part;
      verify_tokens(*open_tokens(direct));
    }
  }
}

// A part of bytes writes the same file as its tokens.
TEST(TokenData, WidensBytesWhenWriting) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 200; ++round) {
    TokenPart part;
    part.end = 256;
    part.text.resize(1 + random() % 300);
    std::vector<std::uint16_t> wanted;
    for (char& byte : part.text) {
      byte = static_cast<char>(random());
      wanted.push_back(static_cast<unsigned char>(byte));
      if (random() % 5 != 0) continue;
      wanted.back() = part.end;
      part.ends.push_back(wanted.size());
    }
    const auto* const bytes = reinterpret_cast<const std::byte*>(wanted.data());
    ASSERT_EQ(part.bytes(), 2 * wanted.size());
    ASSERT_EQ(checksum_of(part), checkpoint::crc32c(bytes, part.bytes()));
    const std::uint64_t first = random() % 1000;
    for (std::uint64_t& end : part.ends) end += first;
    const std::size_t from = random() % wanted.size(),
                      count = random() % (wanted.size() - from + 1);
    std::vector<std::byte> got(2 * count);
    part.copy(2 * from, 2 * count, got.data(), first);
    ASSERT_TRUE(std::equal(got.begin(), got.end(), bytes + 2 * from)) << from << " " << count;
  }
}

TEST(TokenData, JoinsChecksumsOfParts) {
  std::mt19937_64 random(3);
  std::string text;
  for (int i = 0; i < 5000; ++i) text += static_cast<char>(random());
  for (int i = 0; i < 200; ++i) {
    const std::size_t cut = i < 2 ? i * text.size() : random() % text.size();
    const std::string a = text.substr(0, cut), b = text.substr(cut);
    EXPECT_EQ(checkpoint::crc32c_joined(checkpoint::crc32c(a), checkpoint::crc32c(b), b.size()),
              checkpoint::crc32c(text));
  }
}

std::string numbers(const std::vector<std::int32_t>& header, std::size_t count) {
  std::vector<std::int32_t> all = header;
  all.resize(count);
  return {reinterpret_cast<const char*>(all.data()), 4 * all.size()};
}

TEST(TokenData, ReadsBinFilesOfOtherPrograms) {
  const QuickFolder dir;
  const Expected expected{{{5, 50256, 7, 65535}}, {{1, 1, 1, 1}}};
  const std::string small("\x05\x00\x50\xc4\x07\x00\xff\xff", 8);
  const std::string wide("\x05\0\0\0\x50\xc4\0\0\x07\0\0\0\xff\xff\0\0", 16);
  const std::string nano = write_file(dir / "nano.bin", small);
  const std::string llmc = write_file(dir / "llmc.bin", numbers({20240520, 1, 4}, 256) + small);
  const std::string llama = write_file(dir / "llama.bin", numbers({20240801, 7, 4}, 256) + wide);
  for (const std::string& path : {nano, llmc, llama}) {
    SCOPED_TRACE(path);
    EXPECT_TRUE(is_token_data(path));
    const auto data = open_tokens(path);
    EXPECT_EQ(data->vocab(), 0);
    EXPECT_EQ(data->fingerprint(), "");
    expect_same(*data, expected, false);
    verify_tokens(*data);
    verify_tokens(*data, 65536);
    const std::string error = error_of([&] { verify_tokens(*data, 50257); });
    EXPECT_TRUE(contains(
        error,
        "token 3 of document 0 (3 of all) is 65535, must be less than the vocabulary of 50257"))
        << error;
  }
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "has no tokens"},
      {"abc", "has 3 bytes, must be two per token"},
      {numbers({20240520, 2, 4}, 256) + small, "has the version 2, must be 1"},
      {numbers({20240520, 1, 5}, 256) + small, "has 1032 bytes, expected 1034"},
      {numbers({20240520, 1, 3}, 256) + small, "has 1032 bytes, expected 1030"},
      {numbers({20240520, 1, -1}, 256) + small, "the -1 tokens that it declares"},
      {numbers({20240520, 1, 4}, 100), "truncated"},
      {numbers({20240520, 1, 0}, 256), "has no tokens"},
      {numbers({20240801, 7, 0x7fffffff}, 256) + wide, "expected 8589935612"},
  };
  for (const auto& [bytes, wanted] : bad) {
    const std::string path = write_file(dir / "bad.bin", bytes);
    const std::string error = error_of([&] { open_tokens(path); });
    EXPECT_TRUE(contains(error, wanted)) << error;
    EXPECT_TRUE(contains(error, "bad.bin")) << error;
    EXPECT_THROW(open_tokens(path), DataError);
  }
  EXPECT_THROW(open_tokens(dir / "nowhere"), UsageError);
  EXPECT_THROW(open_tokens(dir.path), UsageError);
  EXPECT_FALSE(is_token_data(dir.path));
  EXPECT_FALSE(is_token_data(dir / "nowhere.bin"));
  EXPECT_FALSE(is_token_data(write_file(dir / "a.txt", "text")));
  write_file(dir / kPreparingName, "x");
  EXPECT_TRUE(contains(error_of([&] { open_tokens(dir.path); }), "unfinished"));
}

class Damaged : public ::testing::Test {
 protected:
  void SetUp() override {
    expected_ = random_documents(5, 30, 500);
    manifest_ = write_folder(dir_.path, expected_, 500, true, 20, 240);
    ASSERT_GT(manifest_.shards.size(), 3u);
  }
  std::string opened() const {
    return error_of([&] { open_tokens(dir_.path); });
  }
  std::string verified() const {
    return error_of([&] { verify_tokens(*open_tokens(dir_.path)); });
  }
  void say(const TokenManifest& manifest) const { publish(dir_ / kTokensName, to_text(manifest)); }

  QuickFolder dir_;
  Expected expected_;
  TokenManifest manifest_;
};

TEST_F(Damaged, DetectsEveryChangedByte) {
  for (const auto& [name, good] : files_of(dir_.path)) {
    for (std::size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      write_file(dir_ / name, bad);
      ASSERT_TRUE(contains(verified(), name.substr(0, name.find('.')))) << name << " " << at;
    }
    write_file(dir_ / name, good);
  }
  EXPECT_EQ(verified(), "");
}

TEST_F(Damaged, DetectsTruncatedMissingAndLinkedFiles) {
  for (const auto& [name, good] : files_of(dir_.path)) {
    const bool json = name == kTokensName;
    if (good.empty()) continue;  // the index of a shard in which no document ends
    write_file(dir_ / name, good.substr(0, good.size() - 1));
    EXPECT_TRUE(contains(opened(), json ? "checksum" : "truncated")) << opened();
    EXPECT_TRUE(contains(opened(), name)) << opened();
    write_file(dir_ / name, good + "x");
    EXPECT_TRUE(contains(opened(), name)) << opened();
    std::filesystem::rename(dir_ / name, dir_ / "elsewhere");
    EXPECT_TRUE(contains(opened(), name)) << opened();
    if (!json) {
      std::filesystem::create_symlink(dir_ / "elsewhere", dir_ / name);
      EXPECT_TRUE(contains(opened(), "symbolic link")) << opened();
      std::filesystem::remove(dir_ / name);
      std::filesystem::create_directory(dir_ / name);
      EXPECT_TRUE(contains(opened(), "is a folder, must be a regular file")) << opened();
      std::filesystem::remove(dir_ / name);
    }
    std::filesystem::remove(dir_ / "elsewhere");
    write_file(dir_ / name, good);
    EXPECT_EQ(opened(), "");
  }
}

TEST_F(Damaged, RejectsInconsistentManifests) {
  const auto lies = [&](const std::string& wanted, const auto& change) {
    TokenManifest manifest = manifest_;
    change(manifest);
    say(manifest);
    EXPECT_TRUE(contains(opened(), wanted)) << opened();
    EXPECT_THROW(open_tokens(dir_.path), DataError);
  };
  for (const char* name : {"../tokens-00000", "/etc/x", ".", "", "a/b", ".hidden", "a b"}) {
    lies("must be the name of a .bin in the folder itself",
         [&](TokenManifest& m) { m.shards[1].name = name; });
  }
  lies("twice", [](TokenManifest& m) { m.shards[1].name = m.shards[0].name; });
  lies("must be a whole number",
       [](TokenManifest& m) { m.shards[0].tokens = std::uint64_t{1} << 63; });
  lies("must be a whole number", [](TokenManifest& m) { m.shards[0].documents = UINT64_MAX; });
  lies("has no tokens", [](TokenManifest& m) { m.shards[2] = {.name = "tokens-00002"}; });
  lies("more than", [](TokenManifest& m) { m.shards[0].tokens = m.shards[1].tokens = kMaxTokens; });
  lies("expected", [](TokenManifest& m) { m.shards[0].tokens += 1; });
  lies("bytes_per_token", [](TokenManifest& m) { m.vocab = 70'000; });
  lies("\"vocab\" is 0", [](TokenManifest& m) { m.vocab = 0; });
  lies("has no documents", [](TokenManifest& m) { m.shards.clear(); });
  lies("end_of_text", [](TokenManifest& m) { m.end_of_text = 500; });
  // The last document must end at the last token.
  while (manifest_.shards.back().documents == 0) manifest_.shards.pop_back();
  const std::string index = dir_ / (manifest_.shards.back().name + ".idx");
  write_file(index, read_all(index).substr(0, read_all(index).size() - 8));
  lies("truncated", [](TokenManifest& m) { m.shards.back().documents -= 1; });
}

TEST_F(Damaged, RejectsIdsOutsideTheVocabulary) {
  TokenManifest manifest = manifest_;
  manifest.vocab = 400;
  say(manifest);
  const auto data = open_tokens(dir_.path);
  std::uint64_t at = 0, document = 0, position = 0;
  for (const auto& ids : expected_.documents) {
    const auto bad = std::find_if(ids.begin(), ids.end(), [](auto id) { return id >= 400; });
    position = static_cast<std::uint64_t>(bad - ids.begin());
    at += position;
    if (bad != ids.end()) break;
    ++document;
  }
  const std::string wanted =
      str("token ", position, " of document ", document, " (", at, " of all)");
  std::vector<std::int64_t> all(data->tokens());
  EXPECT_TRUE(contains(error_of([&] { data->read(0, all); }), wanted));
  EXPECT_TRUE(contains(error_of([&] { verify_tokens(*data); }), wanted));
  verify_tokens(*data, 500);
  std::vector<std::int64_t> before(at);
  data->read(0, before);
}

// An index changed together with its checksum: an error, or valid documents.
TEST_F(Damaged, RejectsInconsistentIndexes) {
  std::size_t most = 0;
  for (std::size_t i = 0; i < manifest_.shards.size(); ++i) {
    if (manifest_.shards[i].documents > manifest_.shards[most].documents) most = i;
  }
  const std::string path = dir_ / (manifest_.shards[most].name + ".idx");
  const std::string good = read_all(path);
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    const std::uint64_t value = random() >> (random() % 64);
    std::memcpy(bad.data() + 8 * (random() % (good.size() / 8)), &value, 8);
    write_file(path, bad);
    TokenManifest manifest = manifest_;
    manifest.shards[most].idx_crc = checkpoint::crc32c(bad);
    say(manifest);
    try {
      const auto data = open_tokens(dir_.path);
      for (std::uint64_t d = 0; d < data->documents(); ++d) {
        try {
          const Document document = data->document(d);
          ASSERT_LT(document.begin, document.end);
          ASSERT_LE(document.end, data->tokens());
        } catch (const DataError&) {
        }
      }
      for (std::uint64_t t = 0; t < data->tokens(); ++t) {
        try {
          const Document document = data->document(data->document_at(t));
          ASSERT_LE(document.begin, t);
          ASSERT_GT(document.end, t);
        } catch (const DataError&) {
        }
      }
    } catch (const DataError&) {
    }
  }
}

TEST_F(Damaged, RejectsReadsPastTheEnd) {
  const auto data = open_tokens(dir_.path);
  std::vector<std::int64_t> two(2);
  std::vector<std::uint8_t> mask(2);
  EXPECT_THROW(data->read(data->tokens() - 1, two), UsageError);
  EXPECT_THROW(data->read(UINT64_MAX, two), UsageError);
  EXPECT_THROW(data->read_mask(data->tokens() - 1, mask), UsageError);
  EXPECT_THROW(data->document(data->documents()), UsageError);
  EXPECT_THROW(data->document_at(data->tokens()), UsageError);
}

}  // namespace
}  // namespace tessera::data
