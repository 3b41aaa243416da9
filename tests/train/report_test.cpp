#include "tessera/train/report.h"
#include "tests/text.h"

#include <gtest/gtest.h>

#include <string>

namespace tessera::train {
namespace {

TEST(Report, MemoryShowsTheDifference) {
  Summary summary;
  summary.predicted.memory = {{"params", 1000}, {"grads", 500}, {"activations", 1'000'000}};
  summary.measured.memory = {
      {"params", 1000}, {"grads", 500}, {"activations", 1'020'000}, {"buffers", 77}};
  const std::string text = memory_table(summary);
  EXPECT_TRUE(contains(text, "exact"));
  EXPECT_TRUE(contains(text, "+2.00%"));
  EXPECT_TRUE(contains(text, "–"));  // buffers are not predicted
  EXPECT_FALSE(contains(text, "optimizer"));
  EXPECT_LT(text.find("params"), text.find("grads"));
}

TEST(Report, ShowsTrafficWithoutAPrediction) {
  Summary summary;
  SentBytes& measured = summary.measured.sent.emplace();
  measured[Axis::dp_shard] = 2'000'000;
  measured[Axis::tp] = 3'000'000;
  EXPECT_TRUE(contains(traffic_table(summary, Axes("dp=4")), "2 MB"));
  EXPECT_FALSE(contains(traffic_table(summary, Axes("dp=4")), "3 MB"));
  EXPECT_TRUE(contains(traffic_table(summary, Axes("dp=4,tp=2")), "3 MB"));
  summary.predicted.sent.emplace()[Axis::dp_shard] = 2'000'000;
  EXPECT_TRUE(contains(traffic_table(summary, Axes("dp=4")), "exact"));
}

TEST(Report, TimesAreMeansWithoutTheFirstSteps) {
  std::vector<StepMetrics> steps(10);
  for (StepMetrics& step : steps) {
    step.forward_s = 0.1;
    step.backward_s = 0.2;
    step.optimizer_s = 0.05;
    step.comm_exposed_s = 0.05;
    step.comm_s = 0.1;
    step.step_s = 0.5;
  }
  steps[0].forward_s = steps[0].step_s = 100;  // warming up
  const std::string text = time_table(steps);
  EXPECT_TRUE(contains(text, "100 ms")) << text;
  EXPECT_TRUE(contains(text, "40.0%"));  // backward
  EXPECT_TRUE(contains(text, "other"));
  EXPECT_TRUE(contains(text, "communication / computation 0.286")) << text;
  EXPECT_TRUE(contains(text, "50% of it hidden")) << text;
  EXPECT_EQ(time_table({}), "");
  for (StepMetrics& step : steps) step.comm_s = 0;
  EXPECT_TRUE(contains(time_table(steps), "communication / computation 0.000")) << "one rank";
  for (StepMetrics& step : steps) step.sent_bytes = 1;
  EXPECT_TRUE(contains(time_table(steps), "does not time its transfers"));
  EXPECT_TRUE(contains(time_table({steps[1]}), "500 ms"));
}

}  // namespace
}  // namespace tessera::train
