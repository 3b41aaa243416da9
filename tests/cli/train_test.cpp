// `tessera train` as a user runs it: ranks are processes.

#include <gtest/gtest.h>

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
#include "tests/cli/train_runs.h"
#include "tests/toml.h"

namespace tessera::cli {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

TEST_F(Train, EveryStageGivesTheSameParametersAndMatchesThePlan) {
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

// `tessera plan` predicts the same as the table of the run.
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
    // Flags that both have, with the same names.
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

// Reported with the figures before memory is exhausted, and only if it would be.
TEST_F(Train, RefusesModelsThatDoNotFitBeforeStartingRanks) {
  const Outcome outcome = tessera({"--model", "llama3.1-405b", "--steps", "1"});
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "memory: 2 ranks need at least")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "are free")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "--force")) << outcome.err;
  EXPECT_FALSE(contains(outcome.err, "rank 0")) << outcome.err;
}

TEST_F(Train, AccumulationOnThreeRanksMatchesThePlan) {
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

TEST_F(Train, CommunicationOptionsDoNotChangeTheResult) {
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

TEST_F(Train, RecomputationSavesMemoryWithoutChangingTheResult) {
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

TEST_F(Train, LossFallsAndEveryStepIsLogged) {
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

TEST_F(Train, PrintsTablesAndSamples) {
  const Outcome outcome = tessera(small({"--zero", "2"}));
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part : {"predicted", "measured", "optimizer", "bytes sent", "exact",
                           "exposed communication", "communication / computation", "|"}) {
    EXPECT_TRUE(contains(outcome.out, part)) << part << " in\n" << outcome.out;
  }
  EXPECT_TRUE(contains(outcome.err, "3/3 step")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "ZeRO-2"));
}

TEST_F(Train, ReadsTextFilesAsBytes) {
  const std::filesystem::path book = folder / "book.txt";
  std::ofstream(book) << std::string(500, 'a') + "hello world\n";
  const Outcome outcome =
      tessera({"--data", book.string(), "--layers", "1", "--hidden", "32", "--heads", "2", "--seq",
               "32", "--micro-batch", "2", "--steps", "2", "--samples", "1", "--ranks", "1"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, " → ")) << outcome.out;
}

TEST_F(Train, TrainsOnTokensByEpochs) {
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
  EXPECT_TRUE(contains(tessera(words).err, "257 different tokens; must be at least 257"))
      << tessera(words).err;
  words.insert(words.end(), {"--vocab", "257", "--metrics", metrics.string()});
  const Outcome outcome = tessera(words);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "an epoch has 35 samples, separate documents")) << outcome.err;
  EXPECT_TRUE(contains(outcome.err, "8/8 step")) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "as fast as training")) << outcome.out;
  EXPECT_TRUE(contains(outcome.out, " → ")) << outcome.out;
}

// Counts each name (without its label) on each track of each rank. Spans of a track must be nested
// or disjoint, as viewers require.
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

TEST_F(Train, TraceHasTheSpansOfBothRanks) {
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

TEST_F(Train, TraceOfAPipelineShowsBubblesAndMessages) {
  const std::filesystem::path trace = folder / "trace.json";
  const Words flags = {"--trace", trace.string(), "--trace-steps", "2", "--grad-accum", "4", "--pp",
                       "2"};
  EXPECT_EQ(tessera(small(flags)).status, 0);
  std::map<std::string, int> spans = spans_of(trace);
  EXPECT_EQ(spans["0 compute: forward"], 2 * 4);
  EXPECT_EQ(spans["0 compute: bubble:"], 2 * 4);
  EXPECT_EQ(spans["0 pp to 1: send"], 2 * (1 + 4));  // the shape once per step, then activations
  EXPECT_EQ(spans["1 pp from 0: recv"], 2 * (1 + 4));
  EXPECT_EQ(spans["0 pp from 1: recv"], 2 * 4);
  EXPECT_EQ(spans["1 compute: step"], 2);
}

}  // namespace
}  // namespace tessera::cli
