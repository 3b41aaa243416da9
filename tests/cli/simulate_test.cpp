// tessera simulate as a user runs it.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/processes.h"

namespace tessera::cli {
namespace {

using nlohmann::json;

Outcome simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {TESSERA_PROGRAM, "simulate"});
  return outcome_of(arguments);
}

json simulate_json(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const Outcome answer = simulate(std::move(arguments));
  EXPECT_EQ(answer.status, 0) << answer.err;
  return json::parse(answer.out);
}

// File that is removed after the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("tessera-" + std::to_string(::getpid()) + name)) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  std::string path() const { return path_; }
  std::string text() const {
    std::ifstream in(path_);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }

 private:
  std::filesystem::path path_;
};

TEST(Simulate, MatchesTheWorkedExample) {
  const std::vector<std::string> pipeline = {"--pp",      "2",     "--grad-accum", "8",
                                             "--forward", "120ms", "--backward",   "220ms"};
  EXPECT_NEAR(simulate_json(pipeline)["step"], 3.060, 1e-9);
  auto hops = pipeline;
  hops.insert(hops.end(), {"--hop", "5ms"});
  const json answer = simulate_json(hops);
  EXPECT_NEAR(answer["step"], 3.100, 1e-9);
  EXPECT_EQ(answer["ranks"].size(), 2U);
  const json& time = answer["time"];
  const double sum = time["compute"].get<double>() + time["comm_exposed"].get<double>() +
                     time["bubble"].get<double>() + time["optimizer"].get<double>();
  EXPECT_NEAR(sum, time["step"], 1e-9);
}

// Given times are computing times; --tp-time is the time of the tp collectives.
TEST(Simulate, UsesGivenTimesOfTensorParallelism) {
  std::vector<std::string> given = {"--tp",      "5",    "--grad-accum", "2",
                                    "--forward", "10ms", "--backward",   "20ms"};
  EXPECT_NEAR(simulate_json(given)["step"], 0.060, 1e-9);
  const std::string hint = "set it with --tp-time";
  EXPECT_NE(simulate(given).out.find(hint), std::string::npos);
  given.insert(given.end(), {"--tp-time", "8ms"});
  const json answer = simulate_json(given);
  EXPECT_NEAR(answer["step"], 0.076, 1e-9);
  EXPECT_NEAR(answer["time"]["tp"], 0.016, 1e-9);
  EXPECT_NEAR(answer["time"]["compute"], 0.060, 1e-9);
  EXPECT_EQ(simulate(given).out.find(hint), std::string::npos);
  // Chunks share the time, and each stage of a pipeline has it.
  given.insert(given.end(), {"--pp", "2", "--chunks", "2"});
  EXPECT_NEAR(simulate_json(given)["time"]["tp"], 0.016, 1e-9);
  for (const auto& [words, said] :
       {std::pair{std::vector<std::string>{"--tp", "5", "--tp-time", "1ms"}, "--forward"},
        {{"--tp-time", "1ms", "--forward", "1ms", "--backward", "1ms"}, "--tp 2 or more"}}) {
    const Outcome refused = simulate(words);
    EXPECT_EQ(refused.status, 2);
    EXPECT_NE(refused.err.find(said), std::string::npos) << refused.err;
  }
}

// A step that does not fit into memory is reported as such.
TEST(Simulate, ReportsWhatDoesNotFit) {
  const json large = simulate_json({"--model", "llama2-7b", "--dp", "8"});
  EXPECT_FALSE(large["fits"].get<bool>());
  EXPECT_GT(large["memory"].get<double>(), large["memory_usable"].get<double>());
  EXPECT_NE(large["remedy"].get<std::string>().find("--zero 1 fits"), std::string::npos);
  const Outcome text = simulate({"--model", "llama2-7b", "--dp", "8"});
  EXPECT_NE(text.out.find("DOES NOT FIT"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("--zero 1 fits"), std::string::npos) << text.out;
  const json small = simulate_json({"--model", "llama2-7b", "--dp", "8", "--zero", "1"});
  EXPECT_TRUE(small["fits"].get<bool>());
  EXPECT_FALSE(small.contains("remedy"));
  // Given times have no model.
  const std::vector<std::string> given = {"--forward", "1ms",     "--backward",
                                          "2ms",       "--model", "llama2-7b"};
  EXPECT_FALSE(simulate_json(given).contains("fits"));
  // In a sweep, per size: sharded state fits from some size on.
  const std::vector<std::string> sweep = {"--model", "llama2-7b", "--zero",
                                          "1",       "--sweep",   "dp=1..8"};
  const json rows = simulate_json(sweep)["sweep"];
  EXPECT_FALSE(rows[0]["fits"].get<bool>());
  EXPECT_TRUE(rows[3]["fits"].get<bool>());
  EXPECT_NE(simulate(sweep).out.find("DOES NOT FIT at dp 1"), std::string::npos);
}

TEST(Simulate, SixteenThousandRanks) {
  const std::vector<std::string> large = {"--model",
                                          "gpt3-175b",
                                          "--hardware",
                                          "a100-80",
                                          "--tp",
                                          "8",
                                          "--pp",
                                          "16",
                                          "--dp",
                                          "128",
                                          "--zero",
                                          "1",
                                          "--micro-batch",
                                          "1",
                                          "--grad-accum",
                                          "64",
                                          "--checkpoint-activations",
                                          "full"};
  const json calm = simulate_json(large);
  EXPECT_EQ(calm["world"], 16384);
  EXPECT_EQ(calm["replicas"], 1);
  auto rough = large;
  rough.insert(rough.end(), {"--jitter", "0.05", "--straggler", "77:1.3"});
  const json slow = simulate_json(rough);
  EXPECT_EQ(slow["replicas"], 128);
  EXPECT_GT(slow["step"], calm["step"]);
  EXPECT_EQ(simulate_json(rough), slow);  // the same seed, the same run
}

TEST(Simulate, SweepsWithAPlot) {
  const TemporaryFile picture("-sweep.svg");
  const json answer = simulate_json({"--model", "gpt2-xl", "--micro-batch", "4", "--sweep",
                                     "dp=1..4096", "--svg", picture.path()});
  ASSERT_EQ(answer["sweep"].size(), 13U);
  EXPECT_EQ(answer["sweep"][0]["efficiency"], 1.0);
  EXPECT_EQ(answer["sweep"][12]["gpus"], 4096);
  EXPECT_NEAR(answer["sweep"][3]["law"], 1 / 1.15, 1e-12);
  EXPECT_FALSE(answer["comparison"].get<std::string>().empty());
  EXPECT_EQ(picture.text().rfind("<svg", 0), 0U);
  EXPECT_EQ(picture.text().substr(picture.text().size() - 7), "</svg>\n");
  // Reports impossible sizes (25 heads are not divisible) and simulates the others.
  const json odd = simulate_json({"--model", "gpt2-xl", "--sweep", "tp=1..2"});
  EXPECT_TRUE(odd["sweep"][1].contains("error"));
}

TEST(Simulate, SweepsAnySetting) {
  const json answer = simulate_json({"--model", "gpt2-xl", "--hardware", "a100-80", "--dp", "16",
                                     "--micro-batch", "1", "--sweep", "bucket-size=1MB..64MB"});
  EXPECT_EQ(answer["swept"], "bucket-size");
  ASSERT_EQ(answer["sweep"].size(), 7U);
  for (const json& row : answer["sweep"]) {
    const json one =
        simulate_json({"--model", "gpt2-xl", "--hardware", "a100-80", "--dp", "16", "--micro-batch",
                       "1", "--bucket-size", row["value"].get<std::string>()});
    EXPECT_EQ(row["step"], one["step"]) << row;
  }
  const json odd = simulate_json({"--model", "gpt2-xl", "--sweep", "recompute=none,some"});
  EXPECT_TRUE(odd["sweep"][1].contains("error"));
}

TEST(Simulate, SweepsReplicas) {
  const json answer =
      simulate_json({"--model", "llama3-8b", "--hardware", "a100-80", "--dp", "64", "--zero", "3",
                     "--recompute", "full", "--sweep", "dp-replicate=1..8"});
  const json& rows = answer["sweep"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3]["dp_replicate"], 8);
  EXPECT_EQ(rows[0]["time"]["dp_replicate"], 0.0);
  EXPECT_GT(rows[3]["time"]["dp_replicate"], 0.0);
  EXPECT_LT(rows[3]["step"].get<double>(), rows[0]["step"].get<double>());
  EXPECT_GT(rows[3]["memory"].get<double>(), rows[0]["memory"].get<double>());
}

TEST(Simulate, SweepsContextParallelism) {
  const json answer =
      simulate_json({"--model", "llama3-8b", "--hardware", "h100", "--dp", "1", "--zero", "1",
                     "--seq", "65536", "--cp-kind", "ulysses", "--sweep", "cp=1..8"});
  const json& rows = answer["sweep"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[3]["cp"], 8);
  EXPECT_EQ(rows[3]["gpus"], 8);
  EXPECT_EQ(rows[0]["time"]["cp"], 0.0);
  EXPECT_GT(rows[3]["time"]["cp"], 0.0);
  EXPECT_LT(rows[3]["step"].get<double>(), rows[0]["step"].get<double>());
  EXPECT_LT(rows[3]["memory"].get<double>(), rows[0]["memory"].get<double>());
}

TEST(Simulate, ExchangesRowsOfExperts) {
  const std::vector<std::string> flags = {"--model",        "mixtral-8x7b",
                                          "--hardware",     "h100",
                                          "--gpus",         "16",
                                          "--pp",           "2",
                                          "--ep",           "8",
                                          "--zero",         "1",
                                          "--global-batch", "64"};
  const auto simulated = [&](const char* imbalance) {
    std::vector<std::string> words = flags;
    words.insert(words.end(), {"--expert-imbalance", imbalance});
    return simulate_json(words);
  };
  const json even = simulated("1"), uneven = simulated("1.5");
  const json& experts = even["experts"];
  EXPECT_EQ(experts["active_parameters"], 12'879'925'248);
  EXPECT_EQ(experts["all_to_all"]["seconds"], even["time"]["ep"]);
  EXPECT_EQ(experts["all_to_all"]["calls"], 8 * 16 * 6);  // micro-batches, layers of a stage
  EXPECT_GT(even["time"]["ep"].get<double>(), 0.0);
  EXPECT_GT(uneven["step"].get<double>(), 1.1 * even["step"].get<double>());
  EXPECT_GT(uneven["memory"].get<double>(), even["memory"].get<double>());
  const Outcome text = simulate(flags);
  EXPECT_NE(text.out.find("all-to-all along ep 8, inside a host"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("waiting for ep"), std::string::npos) << text.out;
  EXPECT_EQ(simulate({"--dp", "8"}).out.find("waiting for ep"), std::string::npos);
}

TEST(Simulate, TraceIsJson) {
  const TemporaryFile file("-trace.json");
  const Outcome answer = simulate({"--model", "gpt2-774m", "--pp", "4", "--dp", "2", "--grad-accum",
                                   "4", "--trace", file.path(), "--trace-ranks", "3"});
  EXPECT_EQ(answer.status, 0) << answer.err;
  const json trace = json::parse(file.text());
  std::size_t spans = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ++spans;
    EXPECT_GE(event["dur"], 0);
    EXPECT_LT(event["pid"], 6);  // pipeline ranks 0, 1 and 2, of two replicas each
  }
  EXPECT_GT(spans, 3U * 8U);
}

TEST(Simulate, ReportsGoodputWithFailures) {
  const json answer = simulate_json({"--model", "gpt2-xl", "--dp", "1024", "--mtbf", "50000h",
                                     "--checkpoint-cost", "30s", "--restart-cost", "5min"});
  const json& failures = answer["failures"];
  EXPECT_NEAR(failures["system_mtbf"], 50000 * 3600.0 / 1024, 1);
  EXPECT_NEAR(failures["goodput"], failures["goodput_simulated"],
              5 * failures["goodput_error"].get<double>());
}

TEST(Simulate, TextHasTheSameFigures) {
  const Outcome answer = simulate({"--model", "gpt2-xl", "--dp", "8", "--mtbf", "50000h"});
  EXPECT_EQ(answer.status, 0);
  for (const char* word : {"Step", "bubble", "waiting for dp", "goodput", "pp rank"}) {
    EXPECT_NE(answer.out.find(word), std::string::npos) << word;
  }
}

TEST(Simulate, MistakesAreStatus2AndNothingOnStdout) {
  const std::vector<std::vector<std::string>> cases = {{"--sweep", "dp=4..1"},
                                                       {"--sweep", "xp=1..4"},
                                                       {"--sweep", "dp=1..4", "--dp", "2"},
                                                       {"--sweep", "dp=1..4", "--trace", "x.json"},
                                                       {"--svg", "x.svg"},
                                                       {"--straggler", "3"},
                                                       {"--straggler", "3:0"},
                                                       {"--straggler", "9:2"},
                                                       {"--straggler", "0:nan"},
                                                       {"--straggler", "-1:2"},
                                                       {"--jitter", "-1"},
                                                       {"--jitter", "nan"},
                                                       {"--forward", "0", "--backward", "0"},
                                                       {"--jitter", "much"},
                                                       {"--forward", "1s"},
                                                       {"--hop", "1s"},
                                                       {"--collective", "rings"},
                                                       {"--mtbf", "never"},
                                                       {"--modle", "gpt2-xl"},
                                                       {"--model", "gpt2-lx"},
                                                       {"--params", "13B"},
                                                       {"--dp", "0"},
                                                       {"--trace", "/nowhere/at/all.json"},
                                                       {"--law-cost", "nan"},
                                                       {"--law-cost", "0.1"},
                                                       {"--trace-ranks", "4"},
                                                       {"--checkpoint-cost", "30s"},
                                                       {"--restart-cost", "30s"},
                                                       {"--between-bandwidth", "0GB/s"},
                                                       {"--hardware-file", "/no/such/file"}};
  for (const auto& arguments : cases) {
    const Outcome answer = simulate(arguments);
    EXPECT_EQ(answer.status, 2) << arguments[0] << " " << answer.err;
    EXPECT_EQ(answer.out, "") << arguments[0];
    EXPECT_NE(answer.err.find("--"), std::string::npos) << answer.err;
    const std::string flag = arguments[0] + ": ";
    EXPECT_EQ(answer.err.find(flag + flag), std::string::npos) << "named once: " << answer.err;
  }
}

}  // namespace
}  // namespace tessera::cli
