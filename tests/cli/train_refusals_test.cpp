// `tessera train` as a user runs it: refusals, failures and their messages.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tests/cli/train_runs.h"
#include "tests/toml.h"

namespace tessera::cli {
namespace {

TEST_F(Train, WarnsWithoutCommunication) {
  const Outcome outcome = tessera(small({"--comm", "off", "--zero", "2"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "NOT SYNCHRONIZED"));
}

TEST_F(Train, ExceedingTheMemoryLimitPrintsTheLedger) {
  const Outcome outcome = tessera(small({"--memory-limit", "100kB", "--ranks", "1"}));
  EXPECT_EQ(outcome.status, 1);
  for (const char* part :
       {"out of memory", "limit of 100 kB", "params", "--memory-limit", "--zero"}) {
    EXPECT_TRUE(contains(outcome.err, part)) << part << " in\n" << outcome.err;
  }
}

TEST_F(Train, ReportsTheMemoryLimitOfSeveralRanksOnce) {
  const Outcome outcome = tessera(small({"--memory-limit", "100KiB", "--ranks", "2"}));
  EXPECT_EQ(outcome.status, 1);
  for (const char* part : {": out of memory", "To fit, use", "--memory-limit"}) {
    const std::size_t at = outcome.err.find(part);
    ASSERT_NE(at, std::string::npos) << part << " in\n" << outcome.err;
    EXPECT_EQ(outcome.err.find(part, at + 1), std::string::npos) << part << " in\n" << outcome.err;
  }
}

TEST_F(Train, FailsAtTheEndIfStdoutIsFull) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* ranks : {"1", "2"}) {
    const std::filesystem::path saved = folder / str("run", ranks);
    std::string call = str(TESSERA_PROGRAM, " train");
    for (const auto& word : small({"--ranks", ranks, "--save", saved.string()})) call += " " + word;
    Capture out, err;
    EXPECT_EQ(execute({"/bin/sh", "-c", call + " > /dev/full"}, out, err), 1) << ranks;
    EXPECT_TRUE(contains(err.text(), "cannot write the tables to stdout: No space left"))
        << err.text();
    EXPECT_FALSE(contains(err.text(), "exited with status")) << err.text();
    EXPECT_TRUE(contains(err.text(), "saved: ")) << err.text();
  }
}

TEST_F(Train, HandlesNonFiniteGradients) {
  // A learning rate that makes the parameters overflow.
  const Words wild = {"--lr",        "1000", "--clip",     "0", "--warmup", "0",
                      "--optimizer", "sgd",  "--momentum", "0", "--steps",  "30"};
  // Every mesh reports the first layer or tensor with a non-finite value.
  const std::vector<Words> meshes = {{"--ranks", "1"},
                                     {"--ranks", "2", "--zero", "3"},
                                     {"--tp", "3", "--vocab", "18"},
                                     {"--pp", "2", "--grad-accum", "2"}};
  for (const Words& mesh : meshes) {
    Words stop = small(wild);
    stop.insert(stop.end(), mesh.begin(), mesh.end());
    const Outcome stopped = tessera(stop);
    EXPECT_EQ(stopped.status, 1) << stopped.err;
    EXPECT_TRUE(contains(stopped.err, "--on-nan skip")) << stopped.err;
    EXPECT_TRUE(contains(stopped.err, " is the first in the ")) << stopped.err;
  }
  Words skip = small(wild);
  skip.insert(skip.end(), {"--on-nan", "skip"});
  std::size_t named = 0, skipped = 0;
  for (const Json& line : run(skip)) {
    named += line.contains("non_finite") ? 1 : 0;
    skipped += line.value("skipped", false) ? 1 : 0;
  }
  EXPECT_GT(skipped, 1u);
  EXPECT_EQ(named, 1u) << "the first is looked into, and no other";
}

TEST_F(Train, FlagsOverrideTheFileAndPrintConfigShowsTheResult) {
  TESSERA_NEEDS_TOML();
  const std::filesystem::path file = folder / "run.toml";
  const Outcome printed =
      tessera({"--zero", "1", "--lr", "0.25", "--no-prefetch", "--print-config"});
  EXPECT_EQ(printed.status, 0) << printed.err;
  std::ofstream(file) << printed.out;
  const Outcome again = tessera({"--config", file.string(), "--print-config"});
  EXPECT_EQ(again.out, printed.out);
  const Outcome changed = tessera({"--config", file.string(), "--zero", "3", "--print-config"});
  EXPECT_TRUE(contains(changed.out, "zero = 3\n"));
  EXPECT_TRUE(contains(changed.out, "lr = 0.25\n"));
  EXPECT_TRUE(contains(changed.out, "prefetch = false\n"));
}

TEST_F(Train, MistakesAreStatus2AndNameTheFlag) {
  TESSERA_NEEDS_TOML();
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--zero", "4"}, "--zero: got \"4\"; must be 0 to 3"},
      {{"--ranks", "0"}, "--ranks: got 0; must be 1 to 4096"},
      {{"--ranks", "100000"}, "--ranks: got \"100000\"; must be 0 to 4096: each rank is a process"},
      {{"--tp", "5000"}, "--tp: got \"5000\"; must be 1 to 4096: each rank is a process"},
      {{"--layout", "fp16"}, "--layout: got fp16 with --device cpu"},
      {{"--layout", "fp31"}, "--layout: got \"fp31\"; must be one of bf16"},
      {{"--micro-batch", "3", "--global-batch", "8"}, "--global-batch: got 8"},
      {{"--grad-accum", "3", "--global-batch", "64"}, "--grad-accum: got 3"},
      {{"--data", "/no/such.txt"}, "--data: cannot read \"/no/such.txt\""},
      {{"--model", "gpt5"}, "--model"},
      {{"--hidden", "65"}, "--hidden is 65"},
      {{"--recompute", "most"}, "--recompute"},
      {{"--checkpoint-activations", "most"}, "--recompute"},
      {{"--steps", "many"}, "--steps: got \"many\""},
      {{"--link-latency", "1e300"}, "--link-latency: got \"1e300\", must be at most 60s"},
      {{"--lora-targets", "nonsense"}, "--lora-targets: got \"nonsense\""},
      {{"--metrics", "/no/folder/m"}, "--metrics: cannot write"},
      {{"--trace", "/no/folder/t"}, "--trace: cannot write"},
      {{"--config", "/no.toml"}, "--config: cannot read"},
      {{"--micro-bach", "3"}, "did you mean --micro-batch?"}};
  for (const auto& [words, expected] : cases) {
    const Outcome outcome = tessera(words);
    EXPECT_EQ(outcome.status, 2) << words[0] << outcome.err;
    EXPECT_EQ(outcome.out, "") << words[0];
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

// Reported once, not by every rank.
TEST_F(Train, RefusesInvalidMeshesBeforeStartingRanks) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--sequence-parallel"}, "--sequence-parallel needs --tp 2"},
      {{"--pp", "4", "--layers", "2"}, "--layers: got 2, fewer than the 4 stages"},
      {{"--pp", "2", "--zero", "3", "--schedule", "zb-h1"}, "--schedule zb-h1 defers"},
      {{"--pp", "2", "--zero", "3", "--keep-params"}, "--keep-params is not supported with --pp"},
      {{"--tp", "3", "--heads", "4"}, "--tp 3: heads is 4"},
      {{"--tp", "2", "--sequence-parallel", "--seq", "33"}, "--seq: got 33"}};
  for (const auto& [words, expected] : cases) {
    Words all = {"--steps", "1", "--samples", "0"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = tessera(all);
    EXPECT_EQ(outcome.status, 2) << words[0] << outcome.err;
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "rank 0")) << outcome.err;
    std::size_t told = 0;
    for (std::size_t at = 0; (at = outcome.err.find("tessera train: ", at)) != std::string::npos;
         ++at) {
      if (outcome.err.compare(at, 24, "tessera train: warning: ") != 0) ++told;
    }
    EXPECT_EQ(told, 1u) << outcome.err;
  }
}

TEST_F(Train, WarnsOfMoreRanksThanCores) {
  // The missing file is found after the warning and before ranks are started.
  const Outcome outcome = tessera({"--ranks", "4096", "--data", "/no/such.txt"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(contains(outcome.err, "warning: 4096 ranks on")) << outcome.err;
}

TEST_F(Train, CtrlCFinishesTheStepAndShowsTheTables) {
  Words words = small({"--steps", "1000000", "--zero", "2", "--metrics", metrics.string()});
  words.insert(words.begin(), {TESSERA_PROGRAM, "train"});
  Capture out, err;
  Child child([&] {  // the program itself, so that the signal reaches it
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    ::dup2(out.fd(), 1);
    ::dup2(err.fd(), 2);
    ::execv(arguments[0], arguments.data());
    return 127;
  });
  ASSERT_TRUE(wait_until([&] {
    return std::filesystem::exists(metrics) && std::filesystem::file_size(metrics) > 0;
  })) << err.text();
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130) << err.text();
  EXPECT_TRUE(contains(out.text(), "bytes sent")) << out.text() << err.text();
  EXPECT_TRUE(contains(err.text(), "stopped after step"));
}

}  // namespace
}  // namespace tessera::cli
