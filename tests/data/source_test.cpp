#include "tessera/data/source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/data/token_data.h"
#include "tessera/data/windows.h"
#include "tests/temporary_folder.h"

namespace tessera::data {
namespace {

std::vector<Token> values(const at::Tensor& x) {
  return {x.data_ptr<Token>(), x.data_ptr<Token>() + x.numel()};
}

class Folder : public TemporaryFolder {
 public:
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name, std::ios::binary) << text;
    return *this / name;
  }
};

TEST(Sorting, PredictsOnlyTheSortedHalf) {
  for (const std::int64_t seq : {2, 3, 16, 17, 31, 64, 100}) {
    const std::unique_ptr<Source> source = sorting(seq, 0);
    const std::int64_t digits = std::min<std::int64_t>(7, seq / 2), length = 2 * digits + 2;
    const Batch batch = source->batch(5, 3);
    ASSERT_EQ(batch.ids.sizes(), (std::vector<std::int64_t>{3, seq}));
    std::int64_t predicted = 0;
    for (std::int64_t b = 0; b < 3; ++b) {
      const std::vector<Token> ids = values(batch.ids[b].contiguous());
      const std::vector<Token> targets = values(batch.targets[b].contiguous());
      for (std::int64_t t = 0; t < seq; ++t) {
        const std::int64_t in = t % length;
        ASSERT_TRUE(ids[t] >= 0 && ids[t] < source->vocab());
        EXPECT_EQ(targets[t] == kIgnored, in < digits || in >= 2 * digits);
        if (targets[t] == kIgnored) continue;
        ++predicted;
        std::vector<Token> sorted(ids.begin() + (t - in), ids.begin() + (t - in) + digits);
        std::sort(sorted.begin(), sorted.end());
        EXPECT_EQ(targets[t], sorted[in - digits]);
        if (t + 1 < seq) {
          EXPECT_EQ(targets[t], ids[t + 1]);
        }
      }
    }
    EXPECT_EQ(batch.predicted, predicted);
  }
}

TEST(Sorting, DependsOnSeedAndNumberAlone) {
  const std::unique_ptr<Source> source = sorting(48, 3);
  const Batch whole = source->batch(10, 8);
  for (std::int64_t i = 0; i < 8; ++i) {
    const Batch one = sorting(48, 3)->batch(10 + i, 1);
    EXPECT_TRUE(one.ids[0].equal(whole.ids[i]));
    EXPECT_TRUE(one.targets[0].equal(whole.targets[i]));
  }
  EXPECT_FALSE(sorting(48, 4)->batch(10, 8).ids.equal(whole.ids));
  std::set<std::vector<Token>> different;
  for (std::int64_t i = 0; i < 200; ++i) different.insert(values(source->batch(i, 1).ids));
  EXPECT_EQ(different.size(), 200u);
}

TEST(Sorting, DistributesDigitsEvenly) {
  const std::unique_ptr<Source> source = sorting(16, 0);
  std::vector<int> count(10);
  for (int i = 0; i < 2000; ++i) {
    const std::vector<Token> ids = values(source->batch(i, 1).ids);
    for (int d = 0; d < 7; ++d) ++count[ids[d]];
  }
  for (const int c : count) EXPECT_NEAR(c, 1400, 200);
}

TEST(Sorting, ShowsWhetherTheAnswerIsRight) {
  const std::unique_ptr<Source> source = sorting(64, 0);
  const Question question = source->question(0);
  EXPECT_EQ(question.answer_length, 7);
  ASSERT_EQ(question.answer.size(), 7u);
  EXPECT_TRUE(std::is_sorted(question.answer.begin(), question.answer.end()));
  const std::string right = source->show(question, question.answer);
  EXPECT_NE(right.find("| "), std::string::npos);
  EXPECT_NE(right.find("✓"), std::string::npos) << right;
  std::vector<Token> wrong = question.answer;
  wrong[3] = 200;
  EXPECT_NE(source->show(question, wrong).find("✗"), std::string::npos);
  EXPECT_NE(source->question(1).prompt, question.prompt);
}

TEST(Sorting, RejectsTooShortSequences) { EXPECT_THROW(sorting(1, 0), UsageError); }

// Random windows of a text file, one token per byte.
std::unique_ptr<Source> text_file(const std::string& path, std::int64_t seq, std::uint64_t seed) {
  WindowOptions options;
  options.seq = seq;
  options.seed = seed;
  options.order = Order::random;
  return windows(text_tokens(path), options, decode_bytes);
}

TEST(TextFile, ReadsWindowsOfTheFile) {
  const Folder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(1 + i % 101);
  const std::unique_ptr<Source> source = text_file(folder.file("a", text), 20, 1);
  EXPECT_EQ(source->vocab(), 256);
  const Batch batch = source->batch(0, 50);
  EXPECT_EQ(batch.predicted, 50 * 20);
  std::set<Token> starts;
  for (std::int64_t b = 0; b < 50; ++b) {
    const std::vector<Token> ids = values(batch.ids[b].contiguous());
    const std::vector<Token> targets = values(batch.targets[b].contiguous());
    starts.insert(ids[0]);
    for (int t = 0; t < 20; ++t) {
      EXPECT_EQ(ids[t], 1 + (ids[0] - 1 + t) % 101);
      EXPECT_EQ(targets[t], 1 + ids[t] % 101);
    }
  }
  EXPECT_GT(starts.size(), 30u);
  EXPECT_TRUE(source->batch(7, 1).ids[0].equal(batch.ids[7]));
}

TEST(TextFile, AcceptsAFileOfOneWindow) {
  const Folder folder;
  const Batch batch = text_file(folder.file("a", "abcde"), 4, 0)->batch(9, 2);
  EXPECT_EQ(values(batch.ids[0].contiguous()), (std::vector<Token>{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(values(batch.targets[1].contiguous()), (std::vector<Token>{'b', 'c', 'd', 'e'}));
}

TEST(TextFile, ShowsOnlyPrintableText) {
  const Folder folder;
  const std::unique_ptr<Source> source =
      text_file(folder.file("a", "ab\033[31m\n\xc3\xa9 cd"), 4, 0);
  const std::vector<Token> said = {'x', 27, '\n', 300};
  const std::string line = source->show({{'a', 0xff}, 4, {}}, said);
  EXPECT_EQ(line, "a. → x.⏎?");
}

TEST(TextFile, NamesInvalidFiles) {
  const Folder folder;
  const auto message = [](const std::string& path) -> std::string {
    try {
      text_file(path, 10, 0);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THROW(text_file(folder / "absent", 10, 0), UsageError);
  EXPECT_THROW(text_file(folder.file("empty", ""), 10, 0), DataError);
  EXPECT_NE(message(folder / "absent").find("No such file"), std::string::npos);
  EXPECT_NE(message(folder.path).find("is a folder"), std::string::npos);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_NE(message(folder / "pipe").find("is a pipe"), std::string::npos);
  EXPECT_NE(message("/dev/null").find("is a character device"), std::string::npos);
  EXPECT_NE(message(folder.file("empty", "")).find("0 bytes"), std::string::npos);
  const std::string text = message(folder.file("short", "0123456789"));
  EXPECT_NE(text.find("--seq 9 or less"), std::string::npos) << text;
}

// Files that are not text are reported with the position of the first invalid byte.
TEST(TextFile, RejectsFilesThatAreNotText) {
  const Folder folder;
  const auto problem = [&](const std::string& bytes) -> std::string {
    try {
      text_file(folder.file("a", bytes), 2, 0);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  const auto at = [&](const std::string& bytes) {
    const std::string text = problem(bytes);
    const std::size_t found = text.find("offset ");
    return found == std::string::npos ? -1 : std::stoi(text.substr(found + 7));
  };
  using namespace std::string_literals;
  EXPECT_EQ(at("plain text\n\t\r\x1b[0m"), -1);
  EXPECT_EQ(
      at("h\xc3\xa9llo \xe2\x82\xac \xf0\x9f\x99\x82 \xef\xbb\xbf \xed\x9f\xbf \xf4\x8f\xbf\xbf"),
      -1);
  EXPECT_EQ(at("cut at the end \xe2\x82"), -1);
  EXPECT_EQ(at("abc\0def"s), 3);
  EXPECT_EQ(at("abcd\xff and more"), 4);
  EXPECT_EQ(at("caf\xe9 in Latin-1"), 3);
  EXPECT_EQ(at("long form \xc0\xaf"), 10);
  EXPECT_EQ(at("long form \xe0\x80\xaf"), 10);
  EXPECT_EQ(at("surrogate \xed\xa0\x80"), 10);
  EXPECT_EQ(at("too large \xf4\x90\x80\x80"), 10);
  EXPECT_EQ(at("continued \x80"), 10);
  for (const char* part : {"--data", "/a\"", "offset 4", "0xff", "UTF-8"}) {
    EXPECT_NE(problem("abcd\xff and more").find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace tessera::data
