// prepare when killed: running it again gives the bytes of an uninterrupted run.

#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/prepare.h"
#include "tessera/data/token_data.h"
#include "tests/data/token_folders.h"
#include "tests/processes.h"

namespace tessera::data {
namespace {

class Killed : public ::testing::Test {
 protected:
  void SetUp() override {
    std::mt19937_64 random(11);
    std::string text, lines;
    for (int i = 0; i < 700; ++i) {
      text += str("line ", random() % 1000, random() % 6 == 0 ? "\n\n" : "\n");
      lines += str("{\"prompt\": \"question ", random() % 1000, "?\", \"response\": \"",
                   std::string(random() % 40, 'y'), "\"}\n");
    }
    text_ = write_file(dir_ / "a.txt", text);
    lines_ = write_file(dir_ / "a.jsonl", lines);
  }
  PrepareOptions options(const std::string& out, bool prompts, int threads) const {
    PrepareOptions all;
    all.inputs = prompts ? std::vector<std::string>{lines_, lines_}
                         : std::vector<std::string>{text_, lines_, text_};
    all.out = dir_ / out;
    all.format = prompts ? DocumentFormat::prompt : DocumentFormat::text;
    all.text_field = "prompt";
    all.split = SplitDocuments::blank_line;
    all.threads = threads;
    all.part_bytes = 500;
    all.shard_bytes = 6000;
    all.save_seconds = 0;
    all.direct_input = 0;  // with 2 threads around the page cache, if a part fills a block
    all.direct_bytes = threads == 2 ? 1 : 0;
    return all;
  }
  // Runs prepare in a process that is killed after reading `dies_at` bytes. Returns its status.
  static int run(const PrepareOptions& all, std::uint64_t dies_at) {
    Child child([&] {
      PrepareOptions own = all;
      own.report = [&](std::uint64_t done, std::uint64_t) {
        if (done >= dies_at) ::raise(SIGKILL);
      };
      try {
        prepare(own);
      } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 3;
      }
      return 0;
    });
    return child.wait();
  }

  QuickFolder dir_;
  std::string text_, lines_;
};

TEST_F(Killed, ResumesToTheSameBytes) {
  for (const bool prompts : {false, true}) {
    const PrepareOptions whole = options(str("whole", prompts), prompts, 1);
    prepare(whole);
    const auto wanted = files_of(whole.out);
    ASSERT_GT(wanted.size(), 8u);
    for (const std::uint64_t step : {3'000, 11'000, 45'000}) {
      const PrepareOptions all = options(str("killed", prompts, step), prompts, 2);
      int deaths = 0;
      // Each run reads a little more than the one before.
      for (std::uint64_t at = step;; at += step) {
        const int status = run(all, at);
        if (status == 0) break;
        ASSERT_EQ(status, 128 + SIGKILL);
        ++deaths;
        ASSERT_FALSE(is_token_data(all.out));
        ASSERT_TRUE(contains(error_of([&] { open_tokens(all.out); }), "unfinished"));
      }
      EXPECT_GT(deaths, 0);
      EXPECT_TRUE(files_of(all.out) == wanted) << prompts << " " << step;
      verify_tokens(*open_tokens(all.out));
    }
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : files_of(folder)) names.push_back(name);
  return names;
}

// Killed by another process at a random moment.
TEST_F(Killed, ResumesAfterAKillAtAnyMoment) {
  PrepareOptions whole = options("whole", false, 1);
  whole.inputs.insert(whole.inputs.end(), 60, lines_);
  whole.part_bytes = 9'000;
  whole.shard_bytes = 100'000;
  prepare(whole);
  const auto wanted = files_of(whole.out);
  PrepareOptions all = whole;
  all.out = dir_ / "killed";
  all.threads = 2;
  all.direct_bytes = 1;
  int deaths = 0;
  for (int life = 0; life < 40; ++life) {
    const std::string state = all.out + "/" + kPreparingName;
    const std::string before = read_all(state);
    Child child([&] {
      PrepareOptions own = all;
      // The first run waits until it is killed.
      if (life == 0) own.report = [](std::uint64_t, std::uint64_t) { ::raise(SIGSTOP); };
      prepare(own);
      return 0;
    });
    // After a little more progress; the exact moment is random.
    wait_until([&] { return read_all(state) != before || is_token_data(all.out); });
    child.signal(SIGKILL);
    const int status = child.wait();
    if (status == 0) break;
    ++deaths;
  }
  std::cout << "killed " << deaths << " times\n";
  prepare(all);
  EXPECT_TRUE(files_of(all.out) == wanted) << testing::PrintToString(names_in(all.out));
  EXPECT_GT(deaths, 0);
}

// Only a temporary file may be left, and the next run removes it.
TEST_F(Killed, RemovesTemporaryFilesOfPublishing) {
  const PrepareOptions all = options("out", false, 1);
  ASSERT_EQ(run(all, 20'000), 128 + SIGKILL);
  write_file(str(all.out, "/", kPreparingName, ".4711.part"), "half");
  write_file(str(all.out, "/", kTokensName, ".12.part"), "");
  write_file(all.out + "/mine.part", "not a draft");
  write_file(all.out + "/mine.12.part", "not a draft of ours");
  prepare(all);
  const std::vector<std::string> names = names_in(all.out);
  EXPECT_EQ(std::count_if(names.begin(), names.end(),
                          [](const std::string& name) { return name.ends_with(".part"); }),
            2)
      << testing::PrintToString(names);
  EXPECT_TRUE(std::filesystem::exists(all.out + "/mine.part"));
  EXPECT_TRUE(std::filesystem::exists(all.out + "/mine.12.part"));
}

TEST_F(Killed, RemovesTemporaryFilesOfTheFirstPublishing) {
  const PrepareOptions all = options("out", false, 1);
  std::filesystem::create_directory(all.out);
  const std::string draft = write_file(str(all.out, "/", kPreparingName, ".4711.part"), "half");
  const std::string mine = write_file(all.out + "/mine.12.part", "another");
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "mine.12.part"));
  EXPECT_TRUE(std::filesystem::exists(draft));  // a rejected call changes nothing
  std::filesystem::remove(mine);
  prepare(all);
  EXPECT_FALSE(std::filesystem::exists(draft));
  verify_tokens(*open_tokens(all.out));
}

TEST_F(Killed, ResumesBetweenItsLastTwoSteps) {
  PrepareOptions all = options("out", false, 1);
  ASSERT_EQ(run(all, 20'000), 128 + SIGKILL);
  const std::string state = read_all(all.out + "/" + kPreparingName);
  prepare(all);
  const auto wanted = files_of(all.out);
  write_file(all.out + "/" + kPreparingName, state);
  EXPECT_TRUE(prepare(all).was_finished);
  EXPECT_TRUE(files_of(all.out) == wanted);

  // Nothing is appended twice.
  PrepareOptions more = options("out", false, 1);
  more.inputs = {lines_};
  more.append = true;
  ASSERT_EQ(run(more, 9'000), 128 + SIGKILL);
  const std::string appending = read_all(more.out + "/" + kPreparingName);
  EXPECT_TRUE(files_of(more.out).at(kTokensName) == wanted.at(kTokensName));
  const PrepareSummary summary = prepare(more);
  EXPECT_FALSE(summary.was_finished);
  const auto both = files_of(more.out);
  write_file(more.out + "/" + kPreparingName, appending);
  EXPECT_TRUE(prepare(more).was_finished);
  EXPECT_TRUE(files_of(more.out) == both);
}

TEST_F(Killed, RejectsADifferentCall) {
  PrepareOptions all = options("out", false, 1);
  ASSERT_EQ(run(all, 20'000), 128 + SIGKILL);
  PrepareOptions other = all;
  other.split = SplitDocuments::line;
  EXPECT_TRUE(contains(error_of([&] { prepare(other); }),
                       "differed in split_documents (\"blank-line\", now \"line\")"));
  other = all;
  other.inputs.pop_back();
  EXPECT_TRUE(contains(error_of([&] { prepare(other); }), "the input files"));
  // The saved state was changed.
  const std::string shard = all.out + "/tokens-00000.bin";
  const std::string state = all.out + "/" + kPreparingName;
  const auto bad_state = read_all(state);
  write_file(state, bad_state.substr(0, bad_state.size() / 2));
  EXPECT_TRUE(contains(error_of([&] { prepare(all); }), "--restart"));
  all.restart = true;
  const PrepareSummary summary = prepare(all);
  EXPECT_EQ(summary.resumed_at, 0u);
  EXPECT_EQ(error_of([&] { verify_tokens(*open_tokens(all.out)); }), "");
  EXPECT_FALSE(read_all(shard).empty());
}

TEST_F(Killed, DetectsShardsChangedMeanwhile) {
  const PrepareOptions all = options("out", false, 1);
  ASSERT_EQ(run(all, 20'000), 128 + SIGKILL);
  std::string last;
  for (const auto& [name, bytes] : files_of(all.out)) {
    if (name.ends_with(".bin") && !bytes.empty()) last = name;
  }
  std::string bytes = read_all(all.out + "/" + last);
  bytes[0] = static_cast<char>(bytes[0] ^ 1);
  write_file(all.out + "/" + last, bytes);
  const std::string error = error_of([&] { prepare(all); });
  // Bytes after the saved position may be anything.
  if (!error.empty()) {
    EXPECT_TRUE(contains(error, "checksum")) << error;
  } else {
    verify_tokens(*open_tokens(all.out));
  }
}

}  // namespace
}  // namespace tessera::data
