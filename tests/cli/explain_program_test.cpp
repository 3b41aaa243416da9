// tessera explain as a user runs it.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/cli/answer.h"

namespace tessera::cli {
namespace {

TEST(ExplainProgram, PrintsFormulasWithNumbers) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"batch", "--micro-batch", "4", "--grad-accum", "32", "--dp", "8", "--seq", "4096"},
       "4,194,304"},
      {{"memory", "--params", "70B", "--dp", "8", "--zero", "3", "--layout", "bf16-nomaster"},
       "= 105 GB"},
      {{"memory", "--params", "70B", "--dp", "16", "--zero", "3", "--layout", "bf16-nomaster"},
       "= 52.5 GB"},
      {{"memory", "--model", "gpt2-xl", "--dp", "8", "--zero", "1"}, "= 8.57 GB"},
      {{"memory", "--pp", "4", "--grad-accum", "8"}, "4 in flight"},
      {{"traffic", "--params", "10B", "--dp", "64"}, "39.4 GB"},
      {{"traffic", "--params", "10B", "--dp", "64", "--zero", "3"}, "59.1 GB"},
      {{"traffic", "--params", "10B", "--dp", "64", "--zero", "3", "--dp-replicate", "8"},
       "2(R-1)/R · 1·D_g/N = 1.7500 · 2.5 GB = 4.38 GB"},
      {{"memory", "--params", "70B", "--dp", "64", "--zero", "3", "--dp-replicate", "8"},
       "= 140 GB"},
      {{"zero", "--params", "7B", "--dp", "64", "--dp-replicate", "8"},
       "64 data-parallel ranks are 8 replicas of 8"},
      {{"ring", "--bytes", "200MB", "--ranks", "16", "--bandwidth", "100GB/s"}, "3.75 ms"},
      {{"ring", "--bytes", "14GB", "--ranks", "8", "--bandwidth", "600GB/s"}, "40.8 ms"},
      {{"overlap", "--transfer", "5ms", "--hiding", "3ms"}, "= 2 ms"},
      {{"bubble", "--pp", "8", "--grad-accum", "32"}, "17.9%"},
      {{"bubble", "--pp", "8", "--grad-accum", "32"}, "K = 133"},
      {{"bubble", "--pp", "2", "--grad-accum", "8"}, "3.06 s"},
      {{"experts"}, "total   32 layers · 8 experts · 176,160,768 + 1,605,636,096 = 46,702,792,704"},
      {{"experts"}, "active  32 layers · 2 experts · 176,160,768 + 1,605,636,096 = 12,879,925,248"},
      {{"experts"}, "(ep-1)/ep · N·k·C·e = 0.8750 · 8,192 · 4096 · 2 B = 58.7 MB"},
      {{"experts", "--model", "qwen3-30b-a3b", "--dp", "16", "--ep", "16", "--expert-imbalance",
        "2", "--expert-capacity", "1.25"},
       "an expert accepts 1.25 · 4,096 = 5,120 rows; the busiest rank drops 37.5%"},
      {{"experts", "--model", "qwen3-30b-a3b", "--dp", "16", "--ep", "16"}, "across hosts"},
      {{"experts", "--dp", "16", "--ep", "4", "--zero", "1"}, "dp · cp / ep = 4 ranks"},
      {{"memory", "--model", "mixtral-8x7b", "--dp", "16", "--ep", "8", "--zero", "1"},
       "optimizer of experts  12 B  · 5,637,144,576   / 2  = 33.8 GB"},
      {{"traffic", "--model", "mixtral-8x7b", "--dp", "16", "--ep", "8", "--zero", "1"},
       "experts, over the ranks with the same ones: N = 2, D_p = 11.3 GB"},
      {{"step", "--dp", "8"}, "MFU"}};
  for (auto [arguments, expected] : cases) {
    arguments.insert(arguments.begin(), "explain");
    const Answer outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, expected)) << expected << "\n" << outcome.out;
  }
}

// Zero divisors and trivial cases.
TEST(ExplainProgram, HandlesEdgeCasesOfEveryTopic) {
  struct Edge {
    std::vector<std::string> arguments;
    std::string said, unsaid;
  };
  const std::vector<Edge> edges = {
      {{"bubble"}, "bubble = 0 for every K", "K = 0"},
      {{"bubble", "--pp", "1", "--grad-accum", "8"}, "never waits", "5%"},
      {{"bubble", "--pp", "8"}, "5% at K = 133, less from K = 134", "nan"},
      {{"bubble", "--pp", "512", "--grad-accum", "1024"}, "512", "layers"},
      {{"bubble", "--pp", "4", "--grad-accum", "8", "--chunks", "2"},
       "less than 5% from K = 29",
       "K = 28,"},
      {{"bubble", "--pp", "4", "--grad-accum", "8", "--schedule", "zb-h1"},
       "simulated action by action",
       "v·K"},
      {{"traffic", "--params", "10B"}, "0.0000 · 40 GB = 0 B", "0.0000 · 0 B"},
      {{"traffic", "--params", "10B", "--zero", "3", "--grad-accum", "4"}, "4·D_g + 8·D_p", "nan"},
      {{"ring", "--ranks", "1"}, "= 0", "nan"},
      {{"ring", "--bytes", "0"}, "0 B", "nan"},
      {{"overlap", "--ranks", "1"}, "100.0%", "nan"},
      {{"overlap", "--transfer", "0", "--hiding", "0"}, "= 0", "nan"},
      {{"batch", "--params", "10B"}, "give --seq", " = 0\n"},
      {{"batch", "--params", "10B", "--seq", "100"}, "1 · 100 = 100", "give --seq"},
      {{"memory", "--params", "13B", "--zero", "3", "--dp", "64"}, "estimated for a GPT of", "nan"},
      {{"memory", "--params", "1M"}, "the state alone fits", "can fill 82.6 GB: fits"},
      {{"step", "--params", "13B"}, "use --model", "nan"},
      {{"experts", "--model", "mixtral-8x7b"}, "no row leaves it", "nan"},
      {{"experts", "--model", "gpt2-xl"}, "The model has no experts", "nan"},
      {{"experts", "--model", "gpt2-xl", "--experts", "1", "--experts-per-token", "1"},
       "1 expert ·",
       "nan"},
      {{"experts", "--params", "13B"}, "The model has no experts", "nan"},
      {{"experts", "--model", "moe-tiny", "--experts", "5", "--dp", "2", "--ep", "2"},
       "3 · ",
       "nan"},
      {{"memory", "--hardware", "cpu", "--model", "gpt-tiny"}, "Tessera's layers", "s·b·h"}};
  for (Edge edge : edges) {
    edge.arguments.insert(edge.arguments.begin(), "explain");
    const Answer outcome = tessera(edge.arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, edge.said)) << edge.said << "\n" << outcome.out;
    EXPECT_FALSE(contains(outcome.out, edge.unsaid)) << edge.unsaid << "\n" << outcome.out;
  }
}

TEST(ExplainProgram, MistakesAreExplained) {
  for (const auto& [arguments, expected] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"explain"}, "topic"},
           {{"explain", "memroy"}, "did you mean memory?"},
           {{"explain", "ring", "--bandwidth", "fast"}, "rate"},
           {{"explain", "ring", "--ranks", "0"}, "--ranks"},
           {{"explain", "overlap", "--overhead", "nan"}, "--overhead"},
           {{"explain", "overlap", "--overhead", "-1"}, "--overhead"},
           {{"explain", "bubble", "--pp", "0"}, "--pp"},
           {{"explain", "bubble", "--forward", "-1s"}, "--forward"},
           {{"explain", "schedule", "--forward", "nan"}, "--forward"},
           {{"explain", "schedule", "--forward", "nan"}, "Try: tessera explain schedule --help"},
           {{"explain", "schedule", "--chunks", "4"}, "--chunks: got 4, but --schedule 1f1b has 1"},
           {{"explain", "memory", "--bandwidth", "1GB/s"},
            "--bandwidth: applies only to ring, tensor"},
           {{"explain", "batch", "--forward", "1s"}, "--forward: applies only to bubble"},
           {{"explain", "memory", "--tp", "3"}, "25 heads of --model gpt2-xl"},
           {{"explain", "ring", "--bandwidth", "0GB/s"}, "--bandwidth"},
           {{"explain", "memory", "--model", "gpt9"}, "--model"}}) {
    const Answer outcome = tessera(arguments);
    EXPECT_EQ(outcome.status, 2) << expected;
    EXPECT_EQ(outcome.out, "") << expected;
    EXPECT_TRUE(contains(outcome.err, expected)) << outcome.err;
  }
}

// The same default as train and plan.
TEST(ExplainProgram, InterleavedScheduleDefaultsToTwoChunks) {
  const Answer drawn = tessera({"explain", "schedule", "--schedule", "interleaved"});
  EXPECT_EQ(drawn.status, 0) << drawn.err;
  EXPECT_TRUE(contains(drawn.out, "2 chunks a rank")) << drawn.out;
}

TEST(ExplainProgram, RingUsesTheGivenReplicas) {
  const auto eight = tessera({"explain", "ring", "--dp", "8"});
  EXPECT_TRUE(contains(eight.out, "2·7/8")) << eight.out;
  const auto four = tessera({"explain", "ring", "--dp", "8", "--ranks", "4"});
  EXPECT_TRUE(contains(four.out, "2·3/4")) << four.out;
}

}  // namespace
}  // namespace tessera::cli
