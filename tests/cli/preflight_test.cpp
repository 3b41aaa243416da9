// Errors that `tessera train` reports before it starts ranks: once, and without blocking.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/toml.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

std::size_t times_in(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

class Preflight : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder + "/" + name; }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }
  std::string pipe(const std::string& name) const {
    EXPECT_EQ(::mkfifo(path(name).c_str(), 0600), 0);
    return path(name);
  }

  static Outcome run(Words words) {
    words.insert(words.begin(), TESSERA_PROGRAM);
    return outcome_of(words);
  }
  static Words small(Words more) {
    Words words = {"train", "--layers",  "1",  "--hidden",  "16", "--heads",
                   "2",     "--vocab",   "12", "--seq",     "16", "--micro-batch",
                   "1",     "--threads", "1",  "--samples", "0"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Expects this status and one message, not from a rank, that contains all the parts.
  static void expect_refused(const Words& words, int status, const Words& parts) {
    Words all = {"train", "--steps", "1", "--ranks", "2"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome outcome = run(all);
    EXPECT_EQ(outcome.status, status) << words[0] << " " << outcome.err;
    EXPECT_EQ(outcome.out, "") << words[0];
    for (const std::string& part : parts) EXPECT_TRUE(contains(outcome.err, part)) << outcome.err;
    EXPECT_EQ(times_in(outcome.err, "tessera train: ") - times_in(outcome.err, "train: warning: "),
              1u)
        << outcome.err;
    EXPECT_FALSE(contains(outcome.err, "rank 0")) << outcome.err;
  }

  const TemporaryFolder temporary_;
  const std::string folder = temporary_.path;
};

TEST_F(Preflight, RefusesPathsThatAreNotFiles) {
  TESSERA_NEEDS_TOML();
  const std::string waiting = pipe("pipe");
  expect_refused({"--config", folder}, 2, {"--config: ", "is a folder; must be a TOML file"});
  expect_refused({"--config", waiting}, 2, {"--config: ", "is a pipe"});
  expect_refused({"--config", ""}, 2, {"--config: cannot read \"\""});
  expect_refused({"--data", folder}, 2, {"--data: ", "has no tokens.json"});
  expect_refused({"--data", waiting}, 2, {"--data: ", "is a pipe"});
  expect_refused({"--data", "/dev/zero"}, 2, {"--data: ", "is a character device"});
  expect_refused({"--data", file("empty", "")}, 1, {"--data: ", "0 bytes"});
  expect_refused({"--data", file("random", std::string(500, 'x') + "\xff\xfe")}, 1,
                 {"--data: ", "is not text", "offset 500", "UTF-8"});
  expect_refused({"--metrics", folder}, 2, {"--metrics: ", "is a folder"});
  expect_refused({"--metrics", waiting}, 2, {"--metrics: ", "is a pipe that no process reads"});
  expect_refused({"--hardware", "cpu", "--hardware-file", waiting}, 2,
                 {"--hardware-file: ", "is a pipe"});
  expect_refused({"--hardware", "cpu", "--hardware-file", folder}, 2,
                 {"--hardware-file: ", "is a folder"});
}

TEST_F(Preflight, RefusesInvalidSettings) {
  TESSERA_NEEDS_TOML();
  expect_refused({"--config", file("near.toml", "[batch]\nmicro_bach = 3\n")}, 2,
                 {"line 2", "did you mean micro-batch?"});
  expect_refused({"--config", file("long.toml", std::string((1 << 20) + 1, '\n'))}, 1,
                 {"--config: ", "1048577 bytes", "1 MiB"});
  expect_refused({"--eps", "0"}, 2, {"--eps: got \"0\""});
  expect_refused({"--beta2", "1"}, 2, {"--beta2: got \"1\""});
  expect_refused({"--lr", "-1"}, 2, {"--lr: got \"-1\""});
  expect_refused({"--seq", "1"}, 2, {"--seq is 1"});
}

TEST_F(Preflight, RefusesAMissingDevice) {
  // Needs a machine without a GPU.
  if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU here";
  expect_refused({"--device", "cuda"}, 2, {"--device: got cuda", "must be cpu"});
}

TEST_F(Preflight, RefusesFoldersWithoutACheckpoint) {
  const std::string wanted = "must be the folder of a checkpoint";
  fs::create_directory(path("empty"));
  expect_refused({"--resume", path("gone")}, 2, {"--resume: ", "is missing", wanted});
  expect_refused({"--resume", ""}, 2, {"--resume: ", wanted});
  expect_refused({"--resume", path("empty")}, 2, {"is a folder without a checkpoint", wanted});
  expect_refused({"--resume", file("text", "x")}, 2, {"is a regular file", wanted});
  expect_refused({"--resume", pipe("pipe")}, 2, {"is a pipe", wanted});
}

TEST_F(Preflight, ResumesFromTheNewestCheckpoint) {
  const std::string runs = path("runs");
  const Outcome first =
      run(small({"--ranks", "2", "--steps", "4", "--save", runs, "--save-every", "2"}));
  ASSERT_EQ(first.status, 0) << first.err;
  const Outcome more = run(small({"--ranks", "2", "--steps", "6", "--resume", runs}));
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_TRUE(contains(more.err, "resumed after step 4")) << more.err;

  // Fewer steps than done, another model, and a folder with later checkpoints.
  const auto refused = [&](const Words& words, const Words& parts) {
    Words all = small(words);
    all.erase(all.begin());
    expect_refused(all, 2, parts);
  };
  refused({"--steps", "3", "--resume", runs},
          {"--steps: got 3", "after step 4", "nothing to train"});
  refused({"--steps", "3", "--resume", "auto", "--save", runs}, {"--steps: got 3", "after step 4"});
  refused({"--steps", "9", "--resume", runs, "--hidden", "32"}, {"another model", "hidden was 16"});
  refused({"--steps", "9", "--resume", runs, "--optimizer", "sgd"}, {"--optimizer adamw"});
  refused({"--steps", "9", "--save", runs}, {"--save: ", "checkpoint of step 4"});

  const Outcome done = run(small({"--ranks", "2", "--steps", "4", "--resume", runs}));
  EXPECT_EQ(done.status, 0) << done.err;
  EXPECT_TRUE(contains(done.err, "nothing is left to train")) << done.err;

  // A damaged checkpoint is skipped for an older one, as in `tessera checkpoint`.
  fs::remove(runs + "/step-00000004/manifest.json");
  const Outcome older = run(small({"--ranks", "1", "--steps", "4", "--resume", runs}));
  EXPECT_EQ(older.status, 0) << older.err;
  EXPECT_TRUE(contains(older.err, "resumed after step 2")) << older.err;
}

// All ranks of a launcher find the same error: one reports it, and all have the status.
TEST_F(Preflight, RanksOfALauncherReportErrorsOnce) {
  for (const Words& wrong : {Words{"--zero", "4"}, Words{"--data", path("gone")}}) {
    Words words = {"run", "--ranks", "3", "--", TESSERA_PROGRAM, "train"};
    words.insert(words.end(), wrong.begin(), wrong.end());
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    EXPECT_EQ(times_in(outcome.err, "tessera train: "), 1u) << outcome.err;
  }
  const Outcome outcome =
      run({"run", "--ranks", "3", "--", TESSERA_PROGRAM, "train", "--print-config"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(times_in(outcome.out, "micro-batch = "), 1u) << outcome.out;
}

TEST_F(Preflight, RanksOfALauncherPrintTablesOnce) {
  Words words = small({"--steps", "2"});
  words.insert(words.begin(), {"run", "--ranks", "2", "--", TESSERA_PROGRAM});
  const Outcome outcome = run(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(times_in(outcome.out, "time per step"), 1u) << outcome.out;
  EXPECT_EQ(times_in(outcome.out, "bytes sent per rank and step"), 1u) << outcome.out;
}

TEST_F(Preflight, WritesMetricsToAPipeAndToStdout) {
  const std::string lines = pipe("pipe");
  Capture out, err;
  // The reader starts first and must see one stream to its end.
  const int status =
      execute({"/bin/sh", "-c",
               "cat \"$1\" > \"$2\" & reader=$!; "
               "until \"$0\" train --layers 1 --hidden 16 --heads 2 --vocab 12 --seq 16 "
               "--micro-batch 1 --threads 1 --samples 0 --steps 2 --ranks 2 --metrics \"$1\" "
               "2> \"$3\"; do grep -q 'no process reads' \"$3\" || exit 9; done; wait $reader",
               TESSERA_PROGRAM, lines, path("got"), path("err")},
              out, err);
  EXPECT_EQ(status, 0) << err.text();
  std::ifstream in(path("got"));
  const std::string got{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(times_in(got, "\n"), 3u) << got;
  EXPECT_EQ(times_in(got, "\"summary\""), 1u) << got;

  const Outcome shown = run(small({"--steps", "2", "--ranks", "1", "--metrics", "/dev/stdout"}));
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_TRUE(contains(shown.out, "\"step\":1,") && contains(shown.out, "\"summary\"") &&
              contains(shown.out, "time per step"))
      << shown.out;
}

TEST_F(Preflight, HelpShowsTheDefaultsOfFlags) {
  // Returns the text after the flag, independent of how CLI11 formats a default.
  const auto shown = [](const Outcome& help, const std::string& flag) {
    EXPECT_EQ(help.status, 0) << help.err;
    EXPECT_FALSE(contains(help.out, "{false}")) << help.out;
    const std::size_t at = help.out.find(flag);
    if (at == std::string::npos) return std::string();
    return help.out.substr(at, help.out.find('\n', at) - at);
  };
  const Outcome train = run({"train", "--help"}), plan = run({"plan", "--help"});
  EXPECT_TRUE(contains(shown(train, "--no-prefetch"), "true")) << train.out;
  EXPECT_TRUE(contains(shown(train, "--no-keep-params"), "false")) << train.out;
  EXPECT_TRUE(contains(shown(plan, "--no-overlap-grad-reduce"), "true")) << plan.out;
}

// tests/train/idle_settings_test.cpp tests which settings these are.
TEST_F(Preflight, WarnsOnceOfSettingsWithoutEffect) {
  const Outcome outcome =
      run(small({"--steps", "1", "--ranks", "2", "--chunks", "2", "--no-prefetch"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const std::string flag : {"--chunks 2", "--no-prefetch"}) {
    EXPECT_EQ(times_in(outcome.err, "tessera train: warning: " + flag + " has no effect: "), 1u)
        << outcome.err;
  }
}

}  // namespace
}  // namespace tessera::cli
