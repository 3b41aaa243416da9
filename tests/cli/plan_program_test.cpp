// tessera plan as a user runs it.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/core/text.h"
#include "tests/cli/answer.h"

namespace tessera::cli {
namespace {

Answer plan(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "plan");
  return tessera(std::move(arguments));
}

// File that exists as long as the test.
class TextFile {
 public:
  explicit TextFile(const std::string& text) {
    path_ = (std::filesystem::temp_directory_path() / "tessera-plan-XXXXXX").string();
    const int fd = ::mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    ::close(fd);
    std::ofstream(path_) << text;
  }
  ~TextFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(PlanProgram, PlansWithoutFlags) {
  const Answer text = plan({});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {"Parameters", "Memory of a rank (h100)", "Time of a step", "Bound by"}) {
    EXPECT_TRUE(contains(text.out, part)) << part;
  }
  EXPECT_EQ(plan({"--json"}).json()["parameters"], 1'557'611'200);
}

// --print-config of earlier versions wrote keys of PowerSGD, which no longer exist.
TEST(PlanProgram, NamesTheKeysToDeleteFromAnEarlierConfig) {
  const TextFile earlier("dp = 8\npowersgd-rank = 4\npowersgd-warmup = 1000\n");
  const Answer refused = plan({"--config", earlier.path()});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.err, str("--config: ", earlier.path(),
                                        ", line 2: \"powersgd-rank\" is not a setting of a run. "
                                        "PowerSGD has moved to examples/power_sgd.cpp, a hook for "
                                        "Options::reduce_hook. Delete the keys powersgd-rank and "
                                        "powersgd-warmup.\n")))
      << refused.err;
  EXPECT_EQ(plan({"--config", TextFile("dp = 8\n").path()}).status, 0);
}

TEST(PlanProgram, FlagsAndLinesAgree) {
  const std::string line =
      R"({"layers":24,"hidden":1024,"heads":16,"vocab":51200,"seq":1024,"tp":1,"dp":1,"pp":2,)"
      R"("micro_batch":8,"global_batch":16,"zero":0,"checkpoint_activations":"full",)"
      R"("attention":"unfused","overlap_grad_reduce":false,"schedule":"1f1b",)"
      R"("hardware":"a100-80","nodes":1,"gpus_per_node":8})";
  const Answer flags = plan({"--layers",
                             "24",
                             "--hidden",
                             "1024",
                             "--heads",
                             "16",
                             "--vocab",
                             "51200",
                             "--seq",
                             "1024",
                             "--tp",
                             "1",
                             "--dp",
                             "1",
                             "--pp",
                             "2",
                             "--micro-batch",
                             "8",
                             "--global-batch",
                             "16",
                             "--zero",
                             "0",
                             "--checkpoint-activations",
                             "full",
                             "--attention",
                             "unfused",
                             "--no-overlap-grad-reduce",
                             "--schedule",
                             "1f1b",
                             "--hardware",
                             "a100-80",
                             "--nodes",
                             "1",
                             "--gpus-per-node",
                             "8",
                             "--json"});
  ASSERT_EQ(flags.status, 0) << flags.err;
  const TextFile rows(line + "\n{\"dp\":-1}\nnonsense\n\n{\"modle\":\"gpt2-xl\"}\n" + line + "\n");
  const Answer lines = plan({"--questions", rows.path()});
  ASSERT_EQ(lines.status, 0) << lines.err;
  std::istringstream in(lines.out);
  std::vector<nlohmann::json> answers;
  for (std::string each; std::getline(in, each);) answers.push_back(nlohmann::json::parse(each));
  ASSERT_EQ(answers.size(), 5U);
  EXPECT_EQ(answers[0], flags.json());
  EXPECT_EQ(answers[4], flags.json());
  for (const std::size_t bad : {1U, 2U, 3U}) EXPECT_TRUE(answers[bad].contains("error"));
  EXPECT_TRUE(contains(answers[3]["error"].get<std::string>(), "did you mean model?"));
  // Flags are the defaults of a line; --json has no effect.
  const TextFile short_row("{\"dp\":4}\n");
  const auto answer =
      plan({"--questions", short_row.path(), "--json", "--model", "gpt2-124m"}).json();
  EXPECT_EQ(answer["question"]["model"]["name"], "gpt2-124m");
  EXPECT_EQ(answer["question"]["dp"], 4);
}

// Input may be infinite: at most the longest question is buffered.
TEST(PlanProgram, RefusesTooLongQuestions) {
  const std::string row = R"({"model":"gpt2-124m"})";
  const std::string longest = row + std::string((64 << 10) - row.size(), ' ');
  const TextFile good(longest + "\n" + row);
  EXPECT_EQ(plan({"--questions", good.path()}).status, 0);
  const TextFile bad(row + "\n" + longest + " \n");
  const Answer refused = plan({"--questions", bad.path()});
  EXPECT_EQ(refused.status, 1);
  EXPECT_TRUE(contains(refused.err, "line 2 of ")) << refused.err;
  EXPECT_TRUE(contains(refused.err, "longer than 65536 bytes")) << refused.err;
  EXPECT_TRUE(contains(refused.out, "\"question\"")) << "the answer to the first line";
}

TEST(PlanProgram, SearchRanksConfigurations) {
  const Answer text = plan(
      {"--search", "--model", "gpt3-13b", "--gpus", "16", "--global-batch", "32", "--top", "3"});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_TRUE(contains(text.out, "Ruled out")) << text.out;
  const auto json = plan({"--search", "--model", "gpt3-13b", "--gpus", "16", "--global-batch", "32",
                          "--top", "3", "--json"})
                        .json();
  EXPECT_EQ(json["best"].size(), 3U);
  EXPECT_TRUE(json["ruled_out"].contains("does not fit"));
  EXPECT_FALSE(contains(text.out, "across hosts")) << text.out;
  const Answer across = plan({"--search", "--model", "gpt3-6.7b", "--gpus", "16", "--tp", "16",
                              "--global-batch", "16", "--top", "2"});
  EXPECT_TRUE(contains(across.out, "rows 1, 2: tp goes across hosts")) << across.out;
}

TEST(PlanProgram, ReportsReplicasInTheirOwnRows) {
  const std::vector<std::string> words = {"--model", "llama3-8b", "--hardware",    "a100-80",
                                          "--dp",    "64",        "--recompute",   "full",
                                          "--zero",  "3",         "--dp-replicate"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), words.begin(), words.end());
    return plan(more);
  };
  const std::string text = with({"8"}).out;
  for (const char* part : {"dp 64 (8 replicas)", "all-reduce of gradient shards over replicas",
                           "waiting for replicas", "holds all state"}) {
    EXPECT_TRUE(contains(text, part)) << part << "\n" << text;
  }
  EXPECT_FALSE(contains(with({"1"}).out, "waiting for replicas"));
  const Answer refused = plan({"--dp", "8", "--zero", "0", "--dp-replicate", "2"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_TRUE(contains(refused.err, "--dp-replicate 2: needs --zero 1, 2 or 3")) << refused.err;
}

TEST(PlanProgram, ReportsExperts) {
  const std::vector<std::string> flags = {"--model", "mixtral-8x7b", "--hardware", "h100", "--gpus",
                                          "64",      "--zero",       "1",          "--ep", "8"};
  const Answer text = plan(flags);
  for (const char* part :
       {"12,879,925,248 active", "8 of width 14336 in 32 layers, 2 for each token", "dp 64 (ep 8)",
        "all-to-all along ep 8, inside a host", "Memory of a rank by ep", "this plan",
        "waiting for ep"}) {
    EXPECT_TRUE(contains(text.out, part)) << part << "\n" << text.out;
  }
  EXPECT_FALSE(contains(plan({}).out, "xpert"));
  std::vector<std::string> ask = {"--search",
                                  "--model",
                                  "mixtral-8x7b",
                                  "--hardware",
                                  "h100",
                                  "--gpus",
                                  "16",
                                  "--zero",
                                  "1",
                                  "--nodes",
                                  "2",
                                  "--ep",
                                  "8",
                                  "--gpus-per-node",
                                  "4",
                                  "--global-batch",
                                  "64"};
  ask[10] = "8";
  const Answer found = plan(ask);
  EXPECT_EQ(found.status, 0) << found.err;
  EXPECT_TRUE(contains(found.out, "ep goes across hosts")) << found.out;
  EXPECT_FALSE(contains(plan({"--search", "--gpus", "8"}).out, " ep "));
}

TEST(PlanProgram, PrintsLargestBatchesAndModels) {
  const auto json = plan({"--model", "gpt2-xl", "--layout", "bf16-fp32grad", "--hardware", "h100",
                          "--dp", "8", "--zero", "1", "--max-batch", "--json"})
                        .json();
  EXPECT_EQ(json["global_batch"], 168);
  EXPECT_EQ(json["rows"].size(), 16U);
  EXPECT_GT(plan({"--max-model", "--json"}).json()["parameters"], 1'000'000'000);
  EXPECT_TRUE(contains(plan({"--max-model"}).out, "Largest model"));
}

TEST(PlanProgram, CountsLikeMegatron) {
  const Answer text = plan({"--model", "gpt2-xl", "--convention", "megatron"});
  for (const char* part : {"1.47", "0.08", "1.5554", "26699.47"}) {
    EXPECT_TRUE(contains(text.out, part)) << text.out;
  }
}

TEST(PlanProgram, ScoreComparesWithMeasuredSteps) {
  const TextFile runs(
      "gpus,global_batch,micro_batch,hidden,heads,layers,seq,tp,dp,pp,step_ms\n"
      "4,16,4,2048,16,24,1024,1,2,2,400\n16,32,1,2048,16,24,1024,8,2,1,500\n");
  const Answer text = plan({"--score", runs.path(), "--hardware", "a100-80", "--vocab", "51200",
                            "--checkpoint-activations", "full", "--attention", "unfused",
                            "--no-overlap-grad-reduce"});
  EXPECT_EQ(text.status, 0) << text.err;
  for (const char* part : {"mean error", "one node", "several nodes", "line 3"}) {
    EXPECT_TRUE(contains(text.out, part)) << text.out;
  }
  const auto json = plan({"--score", runs.path(), "--hardware", "a100-80", "--json"}).json();
  EXPECT_EQ(json["rows"].size(), 2U);
  EXPECT_TRUE(json["mean_error"].is_number());
}

TEST(PlanProgram, AcceptsUserDefinedHardware) {
  const TextFile own("[mine]\nlike = \"h100\"\nmemory = \"24GB\"\n");
  EXPECT_TRUE(contains(plan({"--hardware-file", own.path(), "--list-hardware"}).out, "mine"));
  const auto json = plan({"--hardware-file", own.path(), "--hardware", "mine", "--json"}).json();
  EXPECT_FALSE(json["fits"].get<bool>());
  EXPECT_TRUE(contains(plan({"--list-models"}).out, "llama3.1-405b"));
}

TEST(PlanProgram, ReportsAnEstimateForAParameterCount) {
  const Answer text = plan({"--params", "13B", "--dp", "8", "--zero", "2"});
  EXPECT_TRUE(contains(text.out, "estimates (~) for a GPT of")) << text.out;
  EXPECT_TRUE(contains(text.out, "fits, by this estimate")) << text.out;
  EXPECT_FALSE(contains(text.out, "0 B")) << text.out;
  const Answer tiny = plan({"--params", "1M"});
  EXPECT_TRUE(contains(tiny.out, "the state alone fits")) << tiny.out;
  EXPECT_TRUE(contains(tiny.out, "unknown")) << tiny.out;
  EXPECT_TRUE(contains(plan({"--params", "13B", "--max-model"}).out, "by state only"));
}

TEST(PlanProgram, MistakesAreStatus2AndNothingOnStdout) {
  const TextFile broken("[mine]\nmemory = = 3\n"), no_column("dp\n1\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--modle", "gpt2-xl"}, "did you mean --model?"},
      {{"--model", "gpt2-x1"}, "did you mean gpt2-xl?"},
      {{"--hardware", "a100-81"}, "did you mean a100-80?"},
      {{"--layers", "0"}, "--layers"},
      {{"--layers", "-4"}, "--layers"},
      {{"--hidden", "99999999999999999999"}, "--hidden"},
      {{"--model", "gpt2-xl", "--tp", "2"}, "does not divide 25 heads"},
      {{"--pp", "96"}, "--layers"},
      {{"--gpus", "7", "--dp", "2"}, "--gpus"},
      {{"--zero", "5"}, "--zero"},
      {{"--schedule", "1f1c"}, "did you mean 1f1b?"},
      {{"--params", "13B", "--model", "gpt2-xl"}, "--params"},
      {{"--search", "--max-batch"}, "choose one of them"},
      {{"--search", "--params", "13B"}, "--search"},
      {{"--params", "13B", "--max-batch"}, "--max-batch: requires the shape of a model"},
      {{"--params", "nan"}, "--params"},
      {{"--params", "0"}, "--params"},
      {{"--tp", "8"}, "25 heads of --model gpt2-xl"},
      {{"--pp", "64"}, "64 stages of --model gpt2-xl"},
      {{"--layers", "12", "--hidden", "100", "--heads", "7"}, "--hidden is 100"},
      {{"--hardware", "cpu", "--nodes", "2", "--dp", "4", "--zero", "3", "--gather", "alias"},
       "--gather"},
      {{"--questions", "/no/such/file"}, "cannot read"},
      {{"--questions", "/dev/zero"}, "is a character device"},
      {{"--batch", "8"}, "use --micro-batch for sequences"},
      {{"--score", "/no/such/file"}, "cannot read"},
      {{"--score", no_column.path()}, "step_ms"},
      {{"--hardware-file", "/no/such/file"}, "cannot read"},
      {{"--hardware-file", broken.path()}, "line 2, column"},
      {{"--list-models", "--json"}, "--json: "},
      {{"--model", "gpt2-xl", "--top", "3"}, "--top: needs --search or --score"},
      {{"stray"}, "unexpected argument"}};
  for (const auto& [arguments, expected] : cases) {
    const Answer outcome = plan(arguments);
    EXPECT_EQ(outcome.status, 2) << expected;
    EXPECT_EQ(outcome.out, "") << expected;
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

// One line with the error and one with the help command; nothing else.
TEST(PlanProgram, BadInputGetsOneClearLine) {
  const TextFile foreign("[m\xc3\xa4x]\nlike = \"h100\"\n"), value("[mine]\nmemory = \xc3\xa4\n"),
      infinite("[mine]\nlike = \"h100\"\nmemory = inf\n"),
      negative("[mine]\nlike = \"h100\"\nmemory = -5\n");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"plan", "--params", "nan"}, "--params"},
      {{"plan", "--params", "-7B"}, "--params"},
      {{"plan", "--params", "1e30"}, "--params"},
      {{"plan", "--seq", "1e30"}, "--seq"},
      {{"plan", "--seq", "nan"}, "--seq"},
      {{"plan", "--dp", "-1"}, "--dp"},
      {{"plan", "--dp", "1e30"}, "--dp"},
      {{"plan", "--dp", "inf"}, "--dp"},
      {{"plan", "--micro-batch", "1.5"}, "--micro-batch"},
      {{"plan", "--bucket-size", "-1"}, "--bucket-size"},
      {{"plan", "--bucket-size", "nan"}, "--bucket-size"},
      {{"plan", "--bucket-size", "1e30"}, "--bucket-size"},
      {{"plan", "--watts", "nan"}, "--watts"},
      {{"plan", "--watts", "1e30"}, "--watts"},
      {{"plan", "--price-per-hour", "-2"}, "--price-per-hour"},
      {{"plan", "--price-per-hour", "inf"}, "--price-per-hour"},
      {{"plan", "--layout", "fp17"}, "--layout"},
      {{"plan", "--layout", "2,-6,12"}, "--layout"},
      {{"plan", "--layout", "nan,2,2"}, "--layout"},
      {{"plan", "--model", "gpt2-\xc3\xa4"}, "--model"},
      {{"plan", "--gpus", "8", "--dp", "3"}, "--gpus: got 8, but dp 3"},
      {{"plan", "--gpus", "8", "--pp", "3"}, "--gpus"},
      {{"plan", "--nodes", "1", "--dp", "16"}, "--nodes"},
      {{"plan", "--global-batch", "10", "--dp", "4"}, "--global-batch"},
      {{"plan", "--global-batch", "16", "--dp", "4", "--grad-accum", "3"}, "--grad-accum"},
      {{"plan", "--hardware-file", foreign.path()}, "line 1"},
      {{"plan", "--hardware-file", value.path()}, "line 2"},
      {{"plan", "--hardware-file", infinite.path()}, "memory"},
      {{"plan", "--hardware-file", negative.path()}, "memory"},
      {{"plan", "--sweep", "dp=1..1e30"}, "--sweep"},
      {{"plan", "--sweep", "dp=4..1"}, "--sweep"},
      {{"plan", "--sweep", "dp=1..4", "--dp", "2"}, "--sweep"},
      {{"plan", "--sweep", "dp=1..4", "--search"}, "choose one"},
      {{"plan", "--svg", "x.svg"}, "--svg"},
      {{"plan", "--sweep", "dp=1..4", "--svg", "/no/such/folder/x.svg"}, "--svg"},
      {{"explain", "zero", "--params", "nan"}, "--params"},
      {{"explain", "zero", "--dp", "0"}, "--dp"},
      {{"explain", "zero", "--gpus", "8", "--dp", "3"}, "--gpus"},
      {{"explain", "zero", "--svg", "/no/such/folder/x.svg"}, "--svg"},
      {{"explain", "parallel", "--gpus", "1"}, "--gpus"},
      {{"explain", "parallel", "--gpus", "-8"}, "--gpus"},
      {{"explain", "parallel", "--params", "7B"}, "--params"},
      {{"explain", "parallel", "--tp", "2"}, "--tp"},
      {{"explain", "tensor", "--params", "7B", "--tp", "2"}, "--params"},
      {{"explain", "tensor", "--bandwidth", "-1GB/s"}, "rate"},
      {{"explain", "limits", "--memory", "nan"}, "--memory"},
      {{"explain", "ring", "--bytes", "1e30"}, "--bytes"},
      {{"explain", "ring", "--latency", "nan"}, "--latency"}};
  for (const auto& [arguments, expected] : cases) {
    const Answer outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 2) << expected << "\n" << outcome.out;
    EXPECT_EQ(outcome.out, "") << expected;
    EXPECT_TRUE(contains(outcome.err, expected)) << expected << "\n" << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 2) << outcome.err;
  }
}

TEST(PlanProgram, HelpHasEveryFlag) {
  const Answer help = plan({"--help"});
  EXPECT_EQ(help.status, 0);
  for (const char* flag : {"--model",
                           "--layers",
                           "--dp",
                           "--tp",
                           "--pp",
                           "--zero",
                           "--layout",
                           "--micro-batch",
                           "--grad-accum",
                           "--global-batch",
                           "--grad-reduce",
                           "--seq",
                           "--checkpoint-activations",
                           "--attention",
                           "--no-overlap-grad-reduce",
                           "--schedule",
                           "--chunks",
                           "--hardware",
                           "--nodes",
                           "--gpus-per-node",
                           "--pad-vocab",
                           "--json",
                           "--search",
                           "--questions",
                           "--score",
                           "Examples"}) {
    EXPECT_TRUE(contains(help.out, flag)) << flag;
  }
}

TEST(PlanProgram, NamesMissingSizes) {
  const auto said = plan({"--layers", "10"});
  EXPECT_EQ(said.status, 2);
  EXPECT_TRUE(contains(said.err, "--hidden is missing")) << said.err;
}

TEST(PlanProgram, ReportsUnknownTrafficForAParameterCount) {
  const char* words = "tp and pp send activations, unknown";
  EXPECT_TRUE(contains(plan({"--params", "7B", "--tp", "8", "--dp", "2"}).out, words));
  EXPECT_TRUE(contains(plan({"--params", "7B", "--pp", "4"}).out, words));
  EXPECT_FALSE(contains(plan({"--params", "7B", "--dp", "2"}).out, words));
}

TEST(PlanProgram, SmallRatesHaveTheirUnits) {
  const auto said = plan({"--hardware", "cpu", "--model", "gpt-tiny"});
  EXPECT_TRUE(contains(said.out, " GFLOP/s per rank")) << said.out;
  EXPECT_TRUE(contains(said.out, "more ranks with --dp")) << said.out;
  EXPECT_TRUE(contains(said.out, "not at once")) << said.out;
}

}  // namespace
}  // namespace tessera::cli
