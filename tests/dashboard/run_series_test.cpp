#include "tessera/dashboard/run_series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "tessera/core/text.h"

namespace tessera::dashboard {
namespace {

std::vector<std::string> kinds(const RunSeries& run) {
  std::vector<std::string> all;
  for (const Mark& mark : run.marks()) all.push_back(str(mark.kind, " ", mark.step));
  return all;
}

TEST(RunSeries, DownsamplingKeepsMinimaAndMaxima) {
  std::mt19937 random(7);
  for (const std::size_t count : {5UL, 999UL, 1000UL, 1001UL, 54321UL}) {
    std::vector<Point> points(count);
    for (std::size_t i = 0; i < count; ++i) {
      points[i].step = static_cast<std::int64_t>(i + 1);
      for (double& value : points[i].values) value = static_cast<double>(random() % 100000);
      points[i].values[2] = 1.0 / static_cast<double>(i + 1);  // falls
      points[i].values[5] = std::nan("");
    }
    const auto few = downsampled(points.data(), points.size(), 1000);
    EXPECT_LE(few.size(), std::max<std::size_t>(1000, 2));
    EXPECT_EQ(few.front().step, 1);
    EXPECT_EQ(few.back().step, static_cast<std::int64_t>(count));
    for (std::size_t v = 0; v < kSeries; ++v) {
      if (v == 5) continue;
      const auto by = [v](const Point& a, const Point& b) { return a.values[v] < b.values[v]; };
      EXPECT_EQ(std::min_element(few.begin(), few.end(), by)->values[v],
                std::min_element(points.begin(), points.end(), by)->values[v]);
      EXPECT_EQ(std::max_element(few.begin(), few.end(), by)->values[v],
                std::max_element(points.begin(), points.end(), by)->values[v]);
    }
    for (std::size_t i = 1; i < few.size(); ++i) {
      EXPECT_LT(few[i - 1].step, few[i].step);
      EXPECT_LE(few[i].values[2], few[i - 1].values[2]);  // what falls, falls still
      EXPECT_TRUE(std::isnan(few[i].values[5]));
    }
  }
}

TEST(RunSeries, RestartRemovesRepeatedSteps) {
  RunSeries run;
  for (int step = 1; step <= 7; ++step) {
    run.line(
        str("{\"step\":", step, ",\"loss\":", step, step == 5 ? ",\"save_exposed_s\":0.1}" : "}"));
  }
  EXPECT_EQ(kinds(run), (std::vector<std::string>{"checkpoint 5"}));
  run.line("{\"step\":6,\"loss\":60,\"start\":{\"steps\":9}}");
  run.line("{\"step\":7,\"loss\":70}");
  ASSERT_EQ(run.points().size(), 7U);
  EXPECT_EQ(run.points()[5].values[0], 60);
  EXPECT_EQ(kinds(run), (std::vector<std::string>{"checkpoint 5", "restart 5"}));
  EXPECT_EQ(run.epoch(), 1U);
  run.line("{\"summary\":{\"interrupted\":false}}");
  EXPECT_FALSE(run.summary().is_null());
  // Resuming removes the end mark, so clients must request everything again.
  EXPECT_EQ(kinds(run).back(), "end 7");
  run.line("{\"step\":8,\"loss\":8}");
  EXPECT_EQ(kinds(run).back(), "restart 7");
  EXPECT_EQ(run.epoch(), 2U);
}

TEST(RunSeries, SumsTokensAndTimeOfStepsThatCount) {
  RunSeries series;
  for (const int step : {1, 2, 3, 4, 3}) {  // restarted before step 3
    series.line(str("{\"step\":", step, ",\"tokens\":100,\"step_s\":", step, "}"));
  }
  const Json columns = RunSeries::columns(series.points());
  EXPECT_EQ(columns["tokens_total"], Json::parse("[100.0,200.0,300.0]"));
  EXPECT_EQ(columns["elapsed_s"], Json::parse("[1.0,3.0,6.0]"));
  series.reset();
  series.line("{\"step\":1}");
  EXPECT_FALSE(RunSeries::columns(series.points()).contains("tokens_total"));
}

TEST(RunSeries, ReducesManyPointsAndKeepsExtremes) {
  RunSeries run(100);
  for (int step = 1; step <= 1000; ++step) {
    run.line(str("{\"step\":", step, ",\"loss\":", step == 777 ? -5 : step % 7, "}"));
    ASSERT_LE(run.points().size(), 100U);
  }
  double least = 0;
  for (std::size_t i = 0; i < run.points().size(); ++i) {
    least = std::min(least, run.points()[i].values[0]);
    if (i > 0) {
      EXPECT_LT(run.points()[i - 1].step, run.points()[i].step);
    }
  }
  EXPECT_EQ(least, -5);
  EXPECT_EQ(run.points().back().step, 1000);
  EXPECT_GT(run.epoch(), 0U);
}

TEST(RunSeries, LimitsTheNumberOfEndMarks) {
  RunSeries run;
  for (int i = 0; i < 30'000; ++i) run.line("{\"summary\":{}}");
  EXPECT_LE(run.marks().size(), 20'000U);
}

TEST(RunSeries, CountsAndSkipsInvalidLines) {
  RunSeries run;
  for (const char* bad :
       {"{\"step\":1", "nonsense", "[]", "3", "{\"step\":\"x\"}", "{\"loss\":1}",
        "{\"step\":-9223372036854775808}", "{\"step\":-1}", "{\"step\":18446744073709551615}"}) {
    run.line(bad);
  }
  EXPECT_EQ(run.damaged(), 9);
  run.line("{\"step\":1,\"loss\":null,\"gpu\":{\"utilization\":50},\"eval\":{\"loss\":2}}");
  ASSERT_EQ(run.points().size(), 1U);
  const Json columns = RunSeries::columns(run.points());
  EXPECT_FALSE(columns.contains("loss"));
  EXPECT_EQ(columns["gpu_utilization"][0], 50);
  EXPECT_EQ(columns["eval_loss"][0], 2);
}

}  // namespace
}  // namespace tessera::dashboard
