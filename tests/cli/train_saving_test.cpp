// `tessera train --save` when it cannot save, and when another run saves to the folder.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class TrainSaving : public ::testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  static Words command(const Words& more) {
    Words words = {TESSERA_PROGRAM, "train", "--layers", "2",  "--hidden",  "36",
                   "--heads",       "3",     "--vocab",  "17", "--seq",     "20",
                   "--micro-batch", "3",     "--steps",  "3",  "--samples", "0",
                   "--threads",     "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  static Outcome train(const Words& more, const std::function<void()>& prepare = {}) {
    return outcome_of(command(more), prepare);
  }
  std::size_t lines_of(const std::string& name) const {
    std::ifstream in(at(name));
    std::size_t count = 0;
    for (std::string line; std::getline(in, line);) ++count;
    return count;
  }
  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path;
};

TEST_F(TrainSaving, ReportsAnUnwritableFolderBeforeTraining) {
  std::ofstream(at("file")) << "x";
  for (const std::string& save : {at("file"), at("file/below"), std::string("/proc/nothing")}) {
    const Outcome outcome = train({"--save", save, "--metrics", at("metrics")});
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "--save: cannot create the folder")) << outcome.err;
    EXPECT_FALSE(fs::exists(at("metrics"))) << "it has begun to train";
  }
}

TEST_F(TrainSaving, LocksTheFolderUntilTheRunIsKilled) {
  Capture out, err;
  const Words first = command(
      {"--save", at("run"), "--steps", "1000000", "--ranks", "2", "--metrics", at("metrics")});
  Child running([&] {
    ::setpgid(0, 0);
    return execute(first, out, err);
  });
  ASSERT_TRUE(wait_until([&] { return lines_of("metrics") > 0; })) << err.text();
  const Outcome second = train({"--save", at("run")});
  EXPECT_EQ(second.status, 2) << second.err;
  EXPECT_TRUE(contains(second.err, "is being written to by tessera train (pid ")) << second.err;
  // The pid is that of a running process.
  const std::size_t digits = second.err.find("(pid ") + 5;
  const pid_t pid = std::atoi(second.err.c_str() + digits);
  ASSERT_FALSE(is_gone(pid));
  const std::size_t before = lines_of("metrics");
  EXPECT_TRUE(wait_until([&] { return lines_of("metrics") > before; })) << "it was disturbed";
  ::kill(pid, SIGKILL);
  ASSERT_TRUE(wait_until([&] { return is_gone(pid); }));
  const Outcome third = train({"--save", at("run")});
  EXPECT_EQ(third.status, 0) << third.err;
  EXPECT_TRUE(contains(third.err, "saved: ")) << third.err;
}

TEST_F(TrainSaving, RestartIsNotLockedOutByItsOwnRun) {
  // With restarts, even a single rank is a separate process.
  const Words words = {"--save", at("run"), "--max-restarts", "1", "--ranks", "1"};
  EXPECT_EQ(train(words).status, 0);
  Words again = words;
  again.insert(again.end(), {"--resume", "auto", "--steps", "5"});
  EXPECT_EQ(train(again).status, 0);
  EXPECT_TRUE(fs::exists(at("run/step-00000005/manifest.json")));
}

// The file size limit is below that of a shard and above that of small files.
void limit_files() {
  const rlimit limit{100'000, 100'000};
  ::setrlimit(RLIMIT_FSIZE, &limit);
}

TEST_F(TrainSaving, FullDiskStopsTheRunAndKeepsEarlierCheckpoints) {
  const Words words = {"--ranks", "1", "--save", at("run")};
  ASSERT_EQ(train(words).status, 0);
  Words again = words;
  again.insert(again.end(), {"--resume", "auto", "--steps", "6", "--save-retries", "0"});
  const Outcome stopped = train(again, limit_files);
  EXPECT_EQ(stopped.status, 1) << stopped.err;
  EXPECT_TRUE(contains(stopped.err, ".tmp-step-00000006/rank-00000.safetensors")) << stopped.err;
  EXPECT_TRUE(contains(stopped.err, "File too large")) << stopped.err;
  EXPECT_TRUE(contains(stopped.err, "ulimit -f")) << stopped.err;
  EXPECT_FALSE(fs::exists(at("run/step-00000006")));
  EXPECT_FALSE(fs::exists(at("run/.tmp-step-00000006")));
  EXPECT_TRUE(fs::exists(at("run/step-00000003/manifest.json")));
}

TEST_F(TrainSaving, WarnContinuesTrainingAndReportsTheLostSteps) {
  const Words words = {"--ranks", "1", "--save", at("run")};
  ASSERT_EQ(train(words).status, 0);
  for (const char* async : {"--async-save", "--no-async-save"}) {
    Words again = words;
    again.insert(again.end(),
                 {"--resume", "auto", "--steps", "6", "--save-every", "2", "--save-retries", "1",
                  "--on-save-error", "warn", "--metrics", at("metrics"), async});
    fs::remove(at("metrics"));
    const Outcome warned = train(again, limit_files);
    EXPECT_EQ(warned.status, 3) << warned.err;
    EXPECT_EQ(lines_of("metrics"), 4u) << "three steps and the summary";
    for (const char* part :
         {"step 4 is not saved yet", "trying again in", "step 4 is NOT SAVED",
          "step 6 is NOT SAVED", "NOT SAVED: the state after step 6 is lost", "File too large"}) {
      EXPECT_TRUE(contains(warned.err, part)) << part << "\n" << warned.err;
    }
    EXPECT_TRUE(contains(warned.err, "last good checkpoint: " + at("run/step-00000003")))
        << warned.err;
    EXPECT_FALSE(contains(warned.err, "\nsaved: "));
  }
  EXPECT_EQ(train({"--on-save-error", "warn"}).status, 2) << "without --save it means nothing";
}

// A run resumes from version 1, on its mesh and on another, as from version 2.
TEST_F(TrainSaving, ResumesCheckpointsOfVersion1) {
  const std::string old = TESSERA_VERSION1;
  const Outcome reshard =
      outcome_of({TESSERA_PROGRAM, "checkpoint", "reshard", old, at("new"), "--dp", "1"});
  ASSERT_EQ(reshard.status, 0) << reshard.err;
  for (const Words& mesh :
       {Words{"--tp", "2", "--dp", "1"}, Words{"--ranks", "2", "--zero", "2"}}) {
    std::vector<std::string> hashes;
    for (const std::string& from : {old, at("new")}) {
      Words words = {TESSERA_PROGRAM,  "train",
                     "--layers",       "1",
                     "--hidden",       "16",
                     "--heads",        "2",
                     "--vocab",        "32",
                     "--positions",    "16",
                     "--seq",          "16",
                     "--global-batch", "16",
                     "--micro-batch",  mesh[0] == "--tp" ? "16" : "8",
                     "--threads",      "1",
                     "--steps",        "4",
                     "--samples",      "0",
                     "--resume",       from};
      words.insert(words.end(), mesh.begin(), mesh.end());
      const Outcome run = outcome_of(words);
      EXPECT_EQ(run.status, 0) << run.out << run.err;
      const std::string all = run.out + run.err, before = "; parameters ";
      const std::size_t begin = all.rfind(before);
      ASSERT_NE(begin, std::string::npos) << all;
      hashes.push_back(all.substr(begin + before.size(), 16));
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

}  // namespace
}  // namespace tessera::cli
