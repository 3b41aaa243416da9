// Input of prepare: compressed files and the positions of cuts.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/input_parts.h"
#include "tessera/data/input_stream.h"
#include "tests/data/token_folders.h"

namespace tessera::data {
namespace {

std::string all_of(InputStream& stream, std::size_t step) {
  std::string all, some(step, '\0');
  while (const std::size_t got = stream.read(some.data(), step)) all.append(some, 0, got);
  return all;
}

class Packed : public ::testing::TestWithParam<std::string> {
 protected:
  // Compresses with the command-line program; skips the test without it.
  bool pack(const std::string& text, const std::string& path) const {
    write_file(dir_ / "plain", text);
    return std::system((GetParam() + " -qc '" + (dir_ / "plain") + "' > '" + path + "' 2>/dev/null")
                           .c_str()) == 0;
  }
  QuickFolder dir_;
};

TEST_P(Packed, ReadsConcatenatedMembers) {
  std::mt19937_64 random(5);
  std::string first, second = "second\n";
  for (int i = 0; i < 100'000; ++i) first += static_cast<char>('a' + random() % 4);
  const std::string a = dir_ / "a", b = dir_ / "b", both = dir_ / "both";
  if (!pack(first, a) || !pack(second, b)) GTEST_SKIP() << "no " << GetParam() << " here";
  const std::string packed = read_all(a) + read_all(b);
  write_file(both, packed);
  try {
    open_input(both);
  } catch (const DataError& error) {
    ASSERT_TRUE(contains(error.what(), "this build has no"));
    GTEST_SKIP() << error.what();
  }
  for (const std::size_t step : {1 << 20, 1000, 7}) {
    const auto stream = open_input(both);
    EXPECT_TRUE(all_of(*stream, step) == first + second);
    EXPECT_EQ(stream->consumed(), packed.size());
  }
  for (const std::uint64_t skip : {1, 99'999, 100'000, 100'006}) {
    EXPECT_TRUE(all_of(*open_input(both, skip), 4096) == (first + second).substr(skip));
  }
  EXPECT_TRUE(contains(error_of([&] { open_input(both, 200'000); }), "Start over"));
  // Truncation anywhere is an error, except between the two members.
  for (std::size_t size = 4; size < packed.size(); size += size < 60 ? 1 : 997) {
    write_file(both, packed.substr(0, size));
    const std::string error = error_of([&] { all_of(*open_input(both), 4096); });
    EXPECT_TRUE(contains(error, "is damaged at byte") && contains(error, "both")) << size << error;
  }
  write_file(both, read_all(a));
  EXPECT_TRUE(all_of(*open_input(both), 4096) == first);
  write_file(both, packed + "more");
  EXPECT_TRUE(contains(error_of([&] { all_of(*open_input(both), 4096); }), "is damaged"));
  // A flipped bit in the compressed data is detected by its checksum.
  for (std::size_t at = 30; at < packed.size() - 20; at += 1009) {
    std::string bad = packed;
    bad[at] = static_cast<char>(bad[at] ^ 16);
    write_file(both, bad);
    EXPECT_THROW(all_of(*open_input(both), 4096), DataError) << at;
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, Packed, ::testing::Values("gzip", "zstd"));

TEST(Input, CutsBetweenWords) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"one two\nthree four\nfi", "one two\nthree four\n"},
      {"0123456789\n\nabc\n d ef", "0123456789\n\nabc\n d"},  // no safe line end: cut at a space
      {"0123456789ab\xe4\xb8\xad\xe6\x96\x87", "0123456789ab\xe4\xb8\xad"},
      {"0123456789abcde", "0123456789abcd"},
      {"0123456789abc \n", "0123456789ab"},
      {"ab", "a"},
  };
  for (const auto& [text, wanted] : cases) {
    EXPECT_EQ(text.substr(0, place_to_cut(text)), wanted) << quote(text);
  }
}

// Reading resumed from any position gives the same parts.
TEST(Input, ResumesAfterEveryPart) {
  const QuickFolder dir;
  std::mt19937_64 random(8);
  std::string text;
  for (int i = 0; i < 300; ++i) {
    text += str("word", random() % 100, random() % 3 ? " " : "\n", random() % 9 ? "" : "\n");
  }
  InputList list;
  for (const char* name : {"a.txt", "b.txt"}) {
    list.files.push_back({write_file(dir / name, text), false, true, text.size(), 0});
  }
  for (const SplitDocuments split :
       {SplitDocuments::file, SplitDocuments::blank_line, SplitDocuments::line}) {
    const PartOptions options{.split = split, .part_bytes = 100};
    std::vector<InputPart> whole;
    PartReader reader(list, options);
    while (auto part = reader.next()) whole.push_back(std::move(*part));
    ASSERT_GT(whole.size(), 20u);
    std::string joined;
    for (const InputPart& part : whole) joined += part.text();
    EXPECT_TRUE(joined == text + text);
    for (std::size_t i = 0; i + 1 < whole.size(); ++i) {
      PartReader again(list, options, whole[i].after);
      const auto next = again.next();
      ASSERT_TRUE(next);
      EXPECT_EQ(next->text(), whole[i + 1].text());
      EXPECT_EQ(next->begun, whole[i].open);
      EXPECT_EQ(next->after, whole[i + 1].after);
    }
  }
}

}  // namespace
}  // namespace tessera::data
