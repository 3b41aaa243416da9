// `tessera train` as a user calls it: ranks are processes.

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/toml.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

class Train : public ::testing::Test {
 protected:
  void SetUp() override { metrics = folder / "metrics.jsonl"; }
  static Outcome tessera(Words words) {
    words.insert(words.begin(), {TESSERA_PROGRAM, "train"});
    return outcome_of(words);
  }

  // A model of a few thousand parameters whose sizes do not divide evenly, and three steps.
  static Words small(Words more) {
    Words words = {"--layers", "2",  "--hidden",  "36", "--heads",       "3",
                   "--vocab",  "17", "--seq",     "20", "--micro-batch", "3",
                   "--steps",  "3",  "--samples", "1",  "--threads",     "1"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Runs it and returns the lines of its metrics.
  std::vector<Json> run(Words words) const {
    words.insert(words.end(), {"--metrics", metrics.string()});
    const Outcome outcome = tessera(words);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    std::vector<Json> lines;
    std::ifstream in(metrics);
    for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  Json summary(const Words& words) const {
    const std::vector<Json> lines = run(words);
    return lines.empty() ? Json() : lines.back().at("summary");
  }

  static void expect_the_plan_was_the_run(const Json& summary, const std::string& what) {
    const Json &predicted = summary.at("predicted"), &measured = summary.at("measured");
    EXPECT_EQ(predicted.at("sent_bytes"), measured.at("sent_bytes")) << what;
    for (const auto& [category, share] : {std::pair<const char*, double>{"params", 0.01},
                                          {"grads", 0.01},
                                          {"optimizer", 0.01},
                                          {"activations", 0.03}}) {
      const double want = predicted.at("memory").at(category).get<double>();
      const double got = measured.at("memory").at(category).get<double>();
      // Each of the engine's buffers is rounded up to 64 bytes.
      EXPECT_NEAR(got, want, share * want + 1024) << what << ": " << category;
    }
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder = temporary_.path;
  std::filesystem::path metrics;
};

TEST_F(Train, EveryStageGivesTheSameParametersAndIsAsPlanned) {
  for (const char* layout : {"fp32", "bf16"}) {
    std::string hash;
    for (const char* stage : {"0", "1", "2", "3"}) {
      const Json got = summary(small({"--zero", stage, "--layout", layout}));
      const std::string what = std::string(layout) + " stage " + stage;
      expect_the_plan_was_the_run(got, what);
      if (hash.empty()) hash = got.at("params_hash");
      EXPECT_EQ(got.at("params_hash"), hash) << what;
      EXPECT_GT(got.at("measured").at("sent_bytes"), 0) << what;
    }
  }
}

// `tessera plan`, asked about the same run, says what the table of the run says.
TEST_F(Train, PlanAndTrainPredictTheSame) {
  TESSERA_NEEDS_TOML();
  struct Pair {
    Words train, plan;
    int ranks;
  };
  const std::vector<Pair> pairs = {
      {{}, {}, 2},
      {{"--zero", "1", "--layout", "bf16"}, {}, 2},
      {{"--zero", "2", "--grad-accum", "2", "--ranks", "3"}, {"--dp", "3"}, 3},
      {{"--zero", "3", "--recompute", "full"}, {}, 2},
      {{"--zero", "3", "--gather", "copy", "--bucket-mb", "0.01", "--no-prefetch"},
       {"--bucket-size", "10000B"},
       2},
      {{"--checkpoint-activations", "selective", "--layout", "bf16-fp32grad"}, {}, 2},
      {{"--pp", "2", "--grad-accum", "4", "--dp", "1"}, {}, 2},
      {{"--tp", "3", "--dp", "1", "--vocab", "18"}, {}, 3}};
  for (const Pair& pair : pairs) {
    const Json run = summary(small(pair.train));
    Words words = {TESSERA_PROGRAM,
                   "plan",
                   "--json",
                   "--hardware",
                   "cpu",
                   "--model",
                   "gpt-tiny",
                   "--dp",
                   "2",
                   "--layout",
                   "fp32",
                   "--layers",
                   "2",
                   "--hidden",
                   "36",
                   "--heads",
                   "3",
                   "--vocab",
                   "17",
                   "--seq",
                   "20",
                   "--micro-batch",
                   "3",
                   "--gpus-per-node",
                   std::to_string(pair.ranks)};
    // The flags that both have, by the same names.
    for (std::size_t i = 0; i < pair.train.size(); ++i) {
      if (pair.train[i] == "--ranks" || pair.train[i] == "--bucket-mb") {
        ++i;
      } else {
        words.push_back(pair.train[i]);
      }
    }
    words.insert(words.end(), pair.plan.begin(), pair.plan.end());
    Capture out, err;
    ASSERT_EQ(execute(words, out, err), 0) << err.text();
    const Json plan = Json::parse(out.text());
    const Json& rank = plan.contains("memory_by_pipeline_rank") ? plan["memory_by_pipeline_rank"][0]
                                                                : plan["memory"];
    const std::string what = pair.train.empty() ? "default" : pair.train[0] + pair.train[1];
    const Json& predicted = run.at("predicted").at("memory");
    for (const char* key :
         {"params", "grads", "optimizer", "activations", "buffers", "temporary"}) {
      EXPECT_EQ(predicted.at(key), rank.at(key)) << what << ": " << key;
    }
    EXPECT_EQ(predicted.at("peak"), rank.at("total")) << what;
    EXPECT_EQ(run.at("predicted").at("sent_bytes").get<double>() > 0, true) << what;
    // Every row has both columns.
    for (const auto& [key, value] : run.at("measured").at("memory").items()) {
      EXPECT_TRUE(predicted.contains(key)) << what << ": " << key;
    }
  }
}

// Told before the machine is full, with the numbers, and only where it would be.
TEST_F(Train, ModelsThatDoNotFitAreRefusedBeforeRanksAreStarted) {
  const Outcome outcome = tessera({"--model", "llama3.1-405b", "--steps", "1"});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "memory: 2 ranks need at least")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "are free")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "--force")) << outcome.err;
  EXPECT_FALSE(contains(outcome.err, "rank 0")) << outcome.err;
}

TEST_F(Train, AccumulationAndThreeRanksAreAsPlanned) {
  std::string
      hash[2];  // with accumulation stages that reduce once, and those that reduce each time
  for (const char* stage : {"0", "1", "2", "3"}) {
    const Json got = summary(small({"--zero", stage, "--grad-accum", "2", "--ranks", "3"}));
    expect_the_plan_was_the_run(got, std::string("stage ") + stage);
    std::string& same = hash[*stage >= '2' ? 1 : 0];
    if (same.empty()) same = got.at("params_hash");
    EXPECT_EQ(got.at("params_hash"), same) << stage;
  }
}

TEST_F(Train, SwitchesThatMustNotChangeTheResult) {
  const std::string want = summary(small({"--zero", "3"})).at("params_hash");
  for (const Words& words : {Words{"--gather", "copy"}, Words{"--keep-params"},
                             Words{"--no-prefetch", "--no-overlap-grad-reduce"},
                             Words{"--bucket-mb", "0.001", "--no-overlap-param-gather"}}) {
    Words all = small({"--zero", "3"});
    all.insert(all.end(), words.begin(), words.end());
    const Json got = summary(all);
    EXPECT_EQ(got.at("params_hash"), want) << words[0];
    expect_the_plan_was_the_run(got, words[0]);
  }
}

TEST_F(Train, RecomputationKeepsLessAndChangesNothing) {
  const Words shape = {"--layers", "3",  "--hidden",      "64", "--heads", "4", "--vocab",   "32",
                       "--seq",    "64", "--micro-batch", "4",  "--steps", "2", "--samples", "0",
                       "--ranks",  "1",  "--threads",     "1"};
  std::string hash;
  double before = 1e300;
  for (const char* mode : {"none", "selective", "full"}) {
    Words words = shape;
    words.insert(words.end(), {"--checkpoint-activations", mode});
    const Json got = summary(words);
    expect_the_plan_was_the_run(got, mode);
    if (hash.empty()) hash = got.at("params_hash");
    EXPECT_EQ(got.at("params_hash"), hash) << mode;
    const double kept = got.at("measured").at("memory").at("activations");
    EXPECT_LT(kept, before) << mode;
    before = kept;
  }
}

TEST_F(Train, LossFallsAndEveryStepIsALine) {
  const std::vector<Json> lines =
      run({"--layers", "1", "--hidden", "64", "--heads", "4", "--vocab", "16", "--seq", "16",
           "--micro-batch", "16", "--steps", "60", "--zero", "2", "--lr", "1e-2"});
  ASSERT_EQ(lines.size(), 61u);
  EXPECT_NEAR(lines[0].at("loss").get<double>(), std::log(16.0), 0.3);
  EXPECT_LT(lines[59].at("loss").get<double>(), 1.7);
  for (std::size_t i = 0; i < 60; ++i) {
    EXPECT_EQ(lines[i].at("step"), i + 1);
    EXPECT_EQ(lines[i].at("tokens"), 2 * 16 * 16);
    EXPECT_EQ(lines[i].at("sent_bytes"), lines[0].at("sent_bytes"));
    EXPECT_GE(lines[i].at("mem_peak_bytes"), lines[i].at("mem_bytes"));
  }
}

TEST_F(Train, TheScreenShowsTablesAndAnswers) {
  const Outcome outcome = tessera(small({"--zero", "2"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"predicted", "measured", "optimizer", "bytes sent", "exact",
                           "exposed communication", "communication / computation", "|"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << " in\n" << outcome.out;
  }
  EXPECT_TRUE(contains(outcome.err, "3/3 step")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "ZeRO-2"));
}

TEST_F(Train, TextFilesAreReadByBytes) {
  const std::filesystem::path book = folder / "book.txt";
  std::ofstream(book) << std::string(500, 'a') + "hello world\n";
  const Outcome outcome =
      tessera({"--data", book.string(), "--layers", "1", "--hidden", "32", "--heads", "2", "--seq",
               "32", "--micro-batch", "2", "--steps", "2", "--samples", "1", "--ranks", "1"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, " → ")) << outcome.out;
}

TEST_F(Train, TokensAreTrainedOnByEpochs) {
  std::ofstream book(folder / "book.jsonl");
  for (int i = 0; i < 40; ++i) book << "{\"text\": \"line " << i << " of a book\"}\n";
  book.close();
  const std::string tokens = (folder / "tokens").string();
  Capture out, err;
  ASSERT_EQ(execute({TESSERA_PROGRAM, "data", "prepare", (folder / "book.jsonl").string(), "--out",
                     tokens},
                    out, err),
            0)
      << err.text();
  Words words = {"--data",      tokens,     "--layers",       "1",   "--hidden",      "32",
                 "--heads",     "2",        "--seq",          "16",  "--micro-batch", "2",
                 "--epochs",    "1",        "--val-fraction", "0.2", "--samples",     "1",
                 "--documents", "separate", "--ranks",        "2"};
  EXPECT_TRUE(contains(tessera(words).err, "257 different tokens; wanted 257 or more"))
      << tessera(words).err;
  words.insert(words.end(), {"--vocab", "257", "--metrics", metrics.string()});
  const Outcome outcome = tessera(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "an epoch has 35 samples, documents apart")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "8/8 step")) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "as fast as it is trained on")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, " → ")) << outcome.out;
}

// How often each name (without its label) is on each track of each rank; spans of a track are
// nested or apart, as a viewer wants them.
std::map<std::string, int> spans_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  const Json events = Json::parse(in).at("traceEvents");
  std::map<std::pair<int, int>, std::string> tracks;
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> times;
  std::map<std::string, int> spans;
  for (const Json& event : events) {
    const std::pair<int, int> at{event.at("pid").get<int>(), event.value("tid", -1)};
    if (event.at("name") == "thread_name") tracks[at] = event.at("args").at("name");
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    ++spans[std::to_string(at.first) + " " + tracks.at(at) + ": " + name.substr(0, name.find(' '))];
    const double begin = event.at("ts");
    times[at].emplace_back(begin, begin + event.at("dur").get<double>());
  }
  for (auto& [at, list] : times) {
    std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    });
    std::vector<double> open;
    for (const auto& [begin, end] : list) {
      while (!open.empty() && open.back() <= begin + 0.002) open.pop_back();
      EXPECT_TRUE(open.empty() || end <= open.back() + 0.002) << tracks.at(at) << " at " << begin;
      open.push_back(end);
    }
  }
  return spans;
}

TEST_F(Train, ATraceHasTheSpansOfBothRanks) {
  const std::filesystem::path trace = folder / "trace.json";
  EXPECT_EQ(tessera(small({"--trace", trace.string(), "--grad-accum", "2", "--zero", "3"})).status,
            0);
  std::map<std::string, int> spans = spans_of(trace);
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(spans[rank + " compute: forward"], 3 * 2);
    EXPECT_EQ(spans[rank + " compute: backward"], 3 * 2);
    EXPECT_EQ(spans[rank + " compute: optimizer"], 3);
    EXPECT_EQ(spans[rank + " compute: step"], 3);
    EXPECT_GT(spans[rank + " dp: all_gather"], 0);
    EXPECT_GT(spans[rank + " dp: reduce_scatter"], 0);
  }
}

TEST_F(Train, ATraceOfAPipelineShowsBubblesAndMessages) {
  const std::filesystem::path trace = folder / "trace.json";
  const Words flags = {"--trace", trace.string(), "--trace-steps", "2", "--grad-accum", "4", "--pp",
                       "2"};
  EXPECT_EQ(tessera(small(flags)).status, 0);
  std::map<std::string, int> spans = spans_of(trace);
  EXPECT_EQ(spans["0 compute: forward"], 2 * 4);
  EXPECT_EQ(spans["0 compute: bubble:"], 2 * 4);
  EXPECT_EQ(spans["0 pp to 1: send"], 1 + 2 * 4);  // the shape, once
  EXPECT_EQ(spans["1 pp from 0: recv"], 1 + 2 * 4);
  EXPECT_EQ(spans["0 pp from 1: recv"], 2 * 4);
  EXPECT_EQ(spans["1 compute: step"], 2);
}

TEST_F(Train, WithoutCommunicationItSaysSo) {
  const Outcome outcome = tessera(small({"--comm", "off", "--zero", "2"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "NOT SYNCHRONISED"));
}

TEST_F(Train, TheMemoryLimitIsAnErrorWithTheLedger) {
  const Outcome outcome = tessera(small({"--memory-limit", "100kB", "--ranks", "1"}));
  EXPECT_EQ(outcome.status, 1);
  for (const char* part :
       {"out of memory", "limit of 100 kB", "params", "--memory-limit", "--zero"}) {
    EXPECT_TRUE(contains(outcome.err, part)) << part << " in\n" << outcome.err;
  }
}

TEST_F(Train, TheMemoryLimitOfSeveralRanksIsToldOnce) {
  const Outcome outcome = tessera(small({"--memory-limit", "100KiB", "--ranks", "2"}));
  EXPECT_EQ(outcome.status, 1);
  for (const char* part : {": out of memory", "What helps", "--memory-limit"}) {
    const std::size_t at = outcome.err.find(part);
    ASSERT_NE(at, std::string::npos) << part << " in\n" << outcome.err;
    EXPECT_EQ(outcome.err.find(part, at + 1), std::string::npos) << part << " in\n" << outcome.err;
  }
}

TEST_F(Train, AFullDiskBehindStdoutIsAnErrorAtTheEnd) {
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

TEST_F(Train, GradientsThatAreNotFinite) {
  // A learning rate that throws the parameters out of the range of numbers.
  const Words wild = {"--lr",        "1000", "--clip",     "0", "--warmup", "0",
                      "--optimizer", "sgd",  "--momentum", "0", "--steps",  "30"};
  Words stop = small(wild), skip = small(wild);
  const Outcome stopped = tessera(stop);
  EXPECT_EQ(stopped.status, 1) << stopped.err;
  EXPECT_TRUE(contains(stopped.err, "--on-nan skip")) << stopped.err;
  skip.insert(skip.end(), {"--on-nan", "skip"});
  EXPECT_GT(summary(skip).at("skipped"), 0);
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
      {{"--zero", "4"}, "--zero: got \"4\", wanted 0 to 3"},
      {{"--ranks", "0"}, "--ranks: got 0, wanted 1 to 4096"},
      {{"--ranks", "100000"}, "--ranks: got \"100000\", wanted 0 to 4096: each rank is a process"},
      {{"--tp", "5000"}, "--tp: got \"5000\", wanted 1 to 4096: each rank is a process"},
      {{"--layout", "fp16"}, "--layout: got fp16 with --device cpu"},
      {{"--layout", "fp31"}, "--layout: got \"fp31\", wanted bf16"},
      {{"--micro-batch", "3", "--global-batch", "8"}, "--global-batch: got 8"},
      {{"--grad-accum", "3", "--global-batch", "64"}, "--grad-accum: got 3"},
      {{"--data", "/no/such.txt"}, "--data: cannot read \"/no/such.txt\""},
      {{"--model", "gpt5"}, "--model"},
      {{"--hidden", "65"}, "--hidden is 65"},
      {{"--recompute", "most"}, "--recompute"},
      {{"--checkpoint-activations", "most"}, "--recompute"},
      {{"--steps", "many"}, "--steps: got \"many\""},
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

// Once, and not by every rank.
TEST_F(Train, MeshesThatCannotBeAreRefusedBeforeRanksAreStarted) {
  const std::vector<std::pair<Words, std::string>> cases = {
      {{"--sequence-parallel"}, "--sequence-parallel needs --tp 2"},
      {{"--pp", "4", "--layers", "2"}, "--layers: got 2, fewer than the 4 stages"},
      {{"--pp", "2", "--zero", "3", "--schedule", "zb-h1"}, "--schedule zb-h1 puts off"},
      {{"--pp", "2", "--zero", "3", "--keep-params"}, "--keep-params with --pp"},
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

TEST_F(Train, MoreRanksThanCoresAreWarnedOf) {
  // The file is looked for after the warning, and before anything is started.
  const Outcome outcome = tessera({"--ranks", "4096", "--data", "/no/such.txt"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_TRUE(contains(outcome.err, "warning: 4096 ranks on")) << outcome.err;
}

TEST_F(Train, CtrlCFinishesTheStepAndShowsTheTables) {
  Words words = small({"--steps", "1000000", "--zero", "2", "--metrics", metrics.string()});
  words.insert(words.begin(), {TESSERA_PROGRAM, "train"});
  Capture out, err;
  Child child([&] {  // the program itself, for the signal to reach it
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
