// Experiments: files, searches and reports with a fake trainer, and one small real experiment.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tessera/cli/experiment_report.h"
#include "tessera/cli/experiment_run.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tests/processes.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"

namespace tessera::cli {
namespace {

constexpr const char* kScale = "[scale.cpu]\nlayers = 2\nhidden = 64\nheads = 2\n";

Experiment parsed(const std::string& rows) {
  return parse_experiment(std::string(kScale) + "memory-limit = \"1MB\"\n" + rows, "x.toml", "cpu");
}
std::string problem(const std::string& text, const std::string& scale = "cpu") {
  return error_of([&] { parse_experiment(text, "x.toml", scale); });
}

TEST(ExperimentSearch, FindsTheLargestFromAnyGuessInFewCalls) {
  for (std::int64_t most = 0; most <= 40; ++most) {
    for (std::int64_t answer = 0; answer <= most; ++answer) {
      for (std::int64_t guess = -1; guess <= most + 2; ++guess) {
        int asked = 0;
        const std::int64_t got = largest_that_fits(guess, most, [&](std::int64_t n) {
          EXPECT_TRUE(n >= 1 && n <= most);
          ++asked;
          return n <= answer;
        });
        ASSERT_EQ(got, answer) << "guess " << guess << " of " << most;
        if (guess == answer && answer > 0) {
          EXPECT_LE(asked, 2);
        }
        EXPECT_LE(asked, 13);
      }
    }
  }
  int asked = 0;
  EXPECT_EQ(largest_that_fits(1, 1'000'000, [&](std::int64_t n) { return ++asked, n <= 777'777; }),
            777'777);
  EXPECT_LE(asked, 42);
}

TEST(ExperimentFile, ParsesBuiltInExperiments) {
  for (const BuiltInExperiment& each : built_in_experiments()) {
    EXPECT_FALSE(find_experiment(each.name, "cpu").rows.empty());
  }
  const Experiment gpu = find_experiment("dp-zero2", "gpu");
  const Experiment cpu = find_experiment("dp-zero2", "cpu");
  EXPECT_EQ(gpu.rows.size(), 14U);
  EXPECT_EQ(value_of(gpu.rows[1].settings, "dp", ""), "4");
  EXPECT_EQ(value_of(cpu.rows[1].settings, "dp", ""), "2");
  EXPECT_EQ(value_of(gpu.scale.settings, "memory-limit", ""), "80GB");
  // The largest batches at DP 8: R11 sharded, R12 plain.
  using Stages = std::vector<std::int64_t>;
  for (const auto& [name, zero, reported] :
       {std::tuple{"R11", Stages{1, 2}, "168"}, {"R12", Stages{0}, "120"}}) {
    const auto row = std::find_if(gpu.rows.begin(), gpu.rows.end(),
                                  [&](const ExperimentRow& each) { return each.name == name; });
    ASSERT_NE(row, gpu.rows.end());
    EXPECT_EQ(row->zero, zero) << name;
    EXPECT_EQ(row->find, "batch") << name;
    EXPECT_TRUE(row->reported.starts_with(reported)) << row->reported;
  }
}

TEST(ExperimentFile, ErrorsNameTheLine) {
  const std::string scale = kScale;
  const auto has = [](const std::string& got, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_TRUE(contains(got, part)) << got;
  };
  has(problem("title = 3"), {"x.toml, line 1", "title", "string"});
  has(problem("titel = \"x\""), {"line 1", "titel", "title"});
  has(problem("title = "), {"x.toml, line 1"});
  has(problem(scale), {"x.toml", "no [[row]]"});
  has(problem("[scale.cpu]\nrounds = 0\n"), {"line 2", "rounds", "1 to 1000"});
  has(problem("[scale.cpu]\nsimulate = 1\n"), {"line 2", "simulate", "true or false"});
  has(problem(scale + "[[row]]\nname = \"a\"\n", "gpu"), {"--scale", "gpu", "cpu"});
  has(problem(scale + "[[row]]\nwhat = \"a\"\n"), {"line 5", "name"});
  has(problem(scale + "[[row]]\nname = \"a\"\nmicro_bach = 2\n"), {"line 7", "micro-batch"});
  has(problem(scale + "[[row]]\nname = \"a\"\nzero = 4\n"), {"line 7", "zero", "0 to 3"});
  has(problem(scale + "[[row]]\nname = \"a\"\nzero = []\n"), {"zero", "at least one"});
  has(problem(scale + "[[row]]\nname = \"a\"\nlayout = \"fp33\"\n"), {"line 7", "layout", "fp32"});
  has(problem(scale + "[[row]]\nname = \"a\"\nmicro-batch = 0\n"), {"line 7", "micro-batch"});
  has(problem(scale + "[[row]]\nname = \"a\"\nfind = \"all\"\n"), {"find", "batch or model"});
  has(problem(scale + "[[row]]\nname = \"a\"\nmicro-batch = \"b+1\"\n"), {"\"a\"", "\"b\""});
  has(problem(scale + "[[row]]\nname = \"a\"\nbase = \"b\"\n"), {"\"a\"", "base", "\"b\""});
  has(problem(scale + "[[row]]\nname = \"a\"\n[[row]]\nname = \"a\"\n"), {"two rows", "\"a\""});
  has(problem(scale + "row = 3\n"), {"line 5"});
  has(problem(scale + "[[row]]\nname = \"a\"\n[plot]\ndp = [1]\n"), {"plot", "zero and batch"});
  has(error_of([] { find_experiment("dp-zero3", "cpu"); }), {"dp-zero3", "did you mean dp-zero2"});
  EXPECT_TRUE(contains(error_of([] { find_experiment("./none.toml", "cpu"); }), "none"));
}

TEST(ExperimentFile, BatchesReferToRows) {
  EXPECT_EQ(parse_batch("17").number, 17);
  EXPECT_EQ(parse_batch("R3").row, "R3");
  EXPECT_EQ(parse_batch("R3+2").number, 2);
  EXPECT_EQ(parse_batch("R3+2").row, "R3");
  for (const char* bad : {"", "0", "-1", "R3+", "R3+x", "1e3"}) {
    EXPECT_THROW(parse_batch(bad), UsageError) << bad;
  }
}

// Fake trainer whose memory is state and sequences: 16 units per parameter, sharded by stage.
struct FakeTrainer {
  std::int64_t limit = 1'000'000;
  std::vector<std::string> ran = {};

  double memory(const RunWords& words) const {
    const double dp = std::stod(value_of(words, "dp", "1"));
    const double batch = std::stod(value_of(words, "micro-batch", "1"));
    const double heads = std::stod(value_of(words, "heads", "2"));
    const std::string zero = value_of(words, "zero", "0");
    const double shared = zero == "0" ? 0 : zero == "1" ? 8 : 12;
    const double params = 10'000 * heads * heads * heads / 8;
    return params * (16 - shared + shared / dp) + 20'000 * batch * heads / 2;
  }
  ExperimentTools tools() {
    ExperimentTools out;
    out.trains = [this](const RunWords& words) {
      ran.push_back(value_of(words, "dp", "1") + "/" + value_of(words, "micro-batch", "1") + "/" +
                    value_of(words, "backend", "shm"));
      RunFacts facts;
      facts.memory = memory(words);
      facts.fits = facts.memory <= static_cast<double>(limit);
      facts.step = 0.1 * std::stod(value_of(words, "grad-accum", "1"));
      return facts;
    };
    // The planner is off by 10%: searches must not rely on it.
    out.predicts = [this](const RunWords& words) {
      return Predicted{0.9 * memory(words), 0.11, 1e4};
    };
    out.report = [](std::int64_t, std::int64_t, const std::string&) {};
    return out;
  }
};

constexpr const char* kRows =
    "[[row]]\nname = \"one\"\nfind = \"batch\"\n"
    "[[row]]\nname = \"more\"\nmicro-batch = \"one+1\"\nout-of-memory = true\n"
    "[[row]]\nname = \"half\"\nbase = \"one\"\nmicro-batch = \"one\"\ngrad-accum = 2\n"
    "[[row]]\nname = \"sharded\"\nmicro-batch = \"one+1\"\ndp = 4\nzero = [1, 2]\n"
    "[[row]]\nname = \"model\"\nfind = \"model\"\nmicro-batch = 1\n"
    "[plot]\ndp = [1, 2, 4, 8]\nzero = [0, 1, 2]\nbatch = \"one\"\n";

TEST(ExperimentRun, ResolvesReferencesAndRunsNothingTwice) {
  const Experiment experiment = parsed(kRows);
  FakeTrainer trainer;
  const ExperimentResults got = run_experiment(experiment, {}, true, trainer.tools());
  ASSERT_EQ(got.rows.size(), 6U);
  EXPECT_EQ(got.rows[0].found, 42);  // (1e6 − 16e4) / 2e4
  EXPECT_EQ(got.rows[0].predicted_found, 47);
  EXPECT_TRUE(got.rows[0].facts.fits);
  EXPECT_EQ(got.rows[1].batch, 43);
  EXPECT_FALSE(got.rows[1].facts.fits);
  EXPECT_EQ(got.rows[2].accumulation, 2);
  EXPECT_EQ(got.rows[3].zero, 1);
  EXPECT_TRUE(got.rows[3].dry && got.rows[3].facts.fits);
  EXPECT_GT(got.rows[3].facts.memory, got.rows[4].facts.memory);
  EXPECT_EQ(got.rows[5].found, 3);  // heads: 2e4 · 3³ + 1e4 · 3 fits, with 4 it does not
  EXPECT_EQ(value_of(got.rows[5].words, "hidden", ""), "96");
  EXPECT_EQ(value_of(got.rows[5].words, "layers", ""), "3");
  // Plain memory is linear in dp, sharded is below it.
  ASSERT_EQ(got.plot.size(), 12U);
  EXPECT_NEAR(got.plot[3].memory, 8 * got.plot[0].memory, 1);
  EXPECT_LT(got.plot[7].memory, got.plot[3].memory);
  EXPECT_LT(got.plot[11].memory, got.plot[7].memory);
  EXPECT_EQ(got.plot[3].batch, 8 * 42);
}

// The limit includes the memory of the runtime, which a run does not count.
TEST(ExperimentRun, CountsTheReserveInTheLimit) {
  const Experiment experiment = parsed(kRows);
  FakeTrainer trainer;
  ExperimentTools tools = trainer.tools();
  tools.predicts = [predicts = tools.predicts](const RunWords& words) {
    Predicted out = predicts(words);
    out.reserve = 90'000;
    return out;
  };
  const ExperimentResults got = run_experiment(experiment, {}, false, tools);
  EXPECT_EQ(got.rows[0].predicted_found, 42);  // (91e4 / 0.9 − 16e4) / 2e4
  EXPECT_NEAR(got.rows[0].predicted.memory, 0.9 * got.rows[0].facts.memory, 1);
}

TEST(ExperimentRun, RunsOnlyTheGivenRowsAndTheirReferences) {
  const Experiment experiment = parsed(kRows);
  FakeTrainer trainer;
  const ExperimentResults got = run_experiment(experiment, {"half"}, false, trainer.tools());
  ASSERT_EQ(got.rows.size(), 2U);
  EXPECT_EQ(got.rows[0].row->name, "one");
  EXPECT_TRUE(
      contains(error_of([&] { run_experiment(experiment, {"hal"}, false, trainer.tools()); }),
               "did you mean half"));
}

// Rows alternate, and the simulator gets the computing times of the run without overlap.
TEST(ExperimentRun, RoundsAlternateAndTheSimulatorGetsComputingTimes) {
  const Experiment experiment = parsed(
      "rounds = 3\nsimulate = true\nreal-ranks = 2\n"
      "[[row]]\nname = \"on\"\ndp = 2\nzero = 1\n"
      "[[row]]\nname = \"off\"\nbase = \"on\"\ndp = 2\nzero = 1\n"
      "overlap-grad-reduce = false\noverlap-param-gather = false\n"
      "[[row]]\nname = \"small\"\ndp = 2\nzero = 1\nbucket-mb = 0.5\n");
  FakeTrainer trainer;
  ExperimentTools tools = trainer.tools();
  std::vector<std::string> ran;
  tools.trains = [&](const RunWords& words) {
    const bool off = value_of(words, "overlap-grad-reduce", "") == "false";
    ran.push_back(off ? "off" : value_of(words, "bucket-mb", "on"));
    RunFacts facts;
    facts.fits = true;
    facts.memory = 1000;
    // The median of three rounds is the second.
    const double by_round[] = {1.0, 1.2, 5.0};
    const auto before = std::count(ran.begin(), ran.end(), ran.back()) - 1;
    facts.step = (off ? 3 : 2) * by_round[before];
    facts.forward = off ? 0.5 : 99;
    return facts;
  };
  tools.simulates = [](const RunWords& words, const RunFacts& computing) {
    EXPECT_EQ(computing.forward, 0.5);
    return value_of(words, "overlap-grad-reduce", "") == "false" ? 3.6 : 2.64;
  };
  const ExperimentResults got = run_experiment(experiment, {}, false, tools);
  EXPECT_EQ(ran,
            (std::vector<std::string>{"on", "off", "0.5", "off", "0.5", "on", "0.5", "on", "off"}));
  ASSERT_EQ(got.rows.size(), 3U);
  EXPECT_DOUBLE_EQ(got.rows[0].facts.step, 2.4);
  EXPECT_DOUBLE_EQ(got.rows[0].facts.least, 2.0);
  EXPECT_DOUBLE_EQ(got.rows[0].facts.most, 10.0);
  EXPECT_DOUBLE_EQ(got.rows[1].simulated, 3.6);
  EXPECT_NEAR(simulator_error(got).most, 0.1, 1e-9);
  const std::string text = experiment_text(experiment, got);
  for (const char* part :
       {"simulated", "+10.0%", "+0.0%", "off against on", "simulated +36.4%",
        "The simulator's step time differs from the measurement by at most 10.0%"}) {
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  }
  const auto json = nlohmann::json::parse(experiment_json(experiment, got, "2026-01-02"));
  EXPECT_DOUBLE_EQ(json["rows"][0]["simulated_s"].get<double>(), 2.64);
  EXPECT_NEAR(json["simulator_differs"]["most"].get<double>(), 0.1, 1e-9);
}

TEST(ExperimentRun, WithoutOverlapChangesOnlyOverlap) {
  const RunWords one = without_overlap({{"zero", "3"}, {"bucket-mb", "7"}, {"dp", "2"}});
  EXPECT_EQ(value_of(one, "prefetch", ""), "false");
  EXPECT_EQ(value_of(one, "bucket-mb", "none"), "none");
  EXPECT_EQ(value_of(one, "dp", ""), "2");
  EXPECT_EQ(value_of(without_overlap({{"zero", "1"}}), "prefetch", "none"), "none");
}

TEST(ExperimentReport, PrintsTableJsonAndPlot) {
  const Experiment experiment = parsed(std::string("") + kRows);
  FakeTrainer trainer;
  const ExperimentResults got = run_experiment(experiment, {}, true, trainer.tools());
  const std::string text = experiment_text(experiment, got);
  for (const char* part :
       {"largest 42, planned 47", "out of memory", "half against one", "+100.0% (100 ms → 200 ms)",
        "*: only one of the ranks", "at most 10.0%"}) {
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  }
  EXPECT_FALSE(contains(text, "should"));
  const auto json = nlohmann::json::parse(experiment_json(experiment, got, "2026-01-02"));
  EXPECT_EQ(json["date"], "2026-01-02");
  EXPECT_EQ(json["rows"].size(), 6U);
  EXPECT_EQ(json["rows"][0]["found"]["largest"], 42);
  EXPECT_TRUE(json["rows"][1]["memory"].is_null());
  EXPECT_NEAR(json["planner_differs"]["memory"]["most"].get<double>(), 0.1, 1e-9);
  // Well-formed: elements are closed in order.
  const std::string svg = experiment_svg(experiment, got);
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/' && tag[0] != '?') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_THROW(experiment_svg(experiment, {}), UsageError);
}

class ExperimentProgram : public ::testing::Test {
 protected:
  Outcome run(std::vector<std::string> words) const {
    words.insert(words.begin(), {TESSERA_PROGRAM, "experiment"});
    return outcome_of(words);
  }
  std::string write(const std::string& text) const {
    const std::string path = folder / "tiny.toml";
    std::ofstream(path) << text;
    return path;
  }
  const TemporaryFolder temporary_;
  const std::filesystem::path folder = temporary_.path;
};

TEST_F(ExperimentProgram, ListsExperimentsAndRefusesInvalidArguments) {
  const Outcome list = run({"--list"});
  EXPECT_EQ(list.status, 0);
  EXPECT_TRUE(contains(list.out, "dp-zero2") && contains(list.out, "R12"));
  EXPECT_EQ(run({}).status, 2);
  EXPECT_EQ(run({"none"}).status, 2);
  EXPECT_EQ(run({"ablation", "--scale", "gpu"}).status, 2);
  EXPECT_EQ(run({"ablation", "--svg", (folder / "x.svg").string()}).status, 2);
}

TEST_F(ExperimentProgram, RunsASmallExperiment) {
  if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without LibTorch";
  const std::string path = write(
      "title = \"tiny\"\n[scale.cpu]\nlayers = 1\nhidden = 32\nheads = 2\nvocab = 64\nseq = 16\n"
      "positions = 16\nthreads = 1\nsteps = 2\nmemory-limit = \"1500kB\"\n"
      "[[row]]\nname = \"one\"\nfind = \"batch\"\n"
      "[[row]]\nname = \"more\"\nmicro-batch = \"one+1\"\nout-of-memory = true\n"
      "[[row]]\nname = \"sharded\"\nmicro-batch = \"one\"\ndp = 4\nzero = 1\n");
  const Outcome got = run({path, "--json"});
  ASSERT_EQ(got.status, 0) << got.err;
  const auto json = nlohmann::json::parse(got.out);
  ASSERT_EQ(json["rows"].size(), 3U);
  const auto& one = json["rows"][0];
  EXPECT_GE(one["found"]["largest"], 2);
  EXPECT_LE(one["memory"], 1'500'000);
  EXPECT_FALSE(json["rows"][1]["fits"]);
  EXPECT_LT(json["rows"][2]["memory"], one["memory"]);
  EXPECT_LE(json["planner_differs"]["memory"]["most"], 0.02) << got.out;
}

TEST_F(ExperimentProgram, ReportsARunThatFails) {
  if (!TESSERA_WITH_TORCH) GTEST_SKIP() << "built without LibTorch";
  const std::string path = write("[scale.cpu]\nlayers = 1\n[[row]]\nname = \"a\"\nheads = 7\n");
  const Outcome got = run({path});
  EXPECT_EQ(got.status, 1);
  EXPECT_TRUE(contains(got.err, "failed with status 2") && contains(got.err, "heads")) << got.err;
}

}  // namespace
}  // namespace tessera::cli
