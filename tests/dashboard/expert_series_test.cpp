#include "tessera/dashboard/expert_series.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tessera/core/text.h"
#include "tessera/dashboard/run_series.h"

namespace tessera::dashboard {
namespace {

Json load(const char* layer, std::vector<std::int64_t> tokens, double dropped = 0,
          double entropy = 1) {
  return {{"layer", layer}, {"tokens", tokens}, {"dropped", dropped}, {"entropy", entropy}};
}

TEST(ExpertSeries, ReturnsOneLayerOrTheSumOfAll) {
  ExpertSeries series;
  series.add(1, Json::array({load("a", {6, 2}, 0, 0.5), load("b", {1, 3}, 0.5, 0.25)}));
  series.add(2, Json::array({load("a", {5, 5}), load("b", {2, 2})}));
  const Json a = series.json("a");
  EXPECT_EQ(a["layers"], Json::parse(R"(["a", "b"])"));
  EXPECT_EQ(a["tokens"], Json::parse("[[6.0, 5.0], [2.0, 5.0]]"));
  EXPECT_EQ(a["mean"], Json::parse("[4.0, 5.0]"));
  EXPECT_EQ(a["imbalance"], Json::parse("[1.5, 1.0]"));
  EXPECT_EQ(a["from"], Json::parse("[1, 2]"));
  EXPECT_EQ(a["to"], Json::parse("[1, 2]"));
  const Json all = series.json("");
  EXPECT_EQ(all["tokens"], Json::parse("[[7.0, 7.0], [5.0, 7.0]]"));
  EXPECT_EQ(all["mean"], Json::parse("[6.0, 7.0]"));
  EXPECT_EQ(all["imbalance"], Json::parse("[1.5, 1.0]"));
  // 4 of the 16 pairs are dropped: half of those of b.
  EXPECT_DOUBLE_EQ(all["dropped"][0], 0.25);
  EXPECT_DOUBLE_EQ(all["entropy"][0], (8 * 0.5 + 8 * 0.25) / 16);
  EXPECT_EQ(series.json("c"), Json::parse(R"({"layers": ["a", "b"]})"));
}

TEST(ExpertSeries, KeepsEveryTokenInFewColumnsOfEqualWidth) {
  ExpertSeries series(10 * 5);  // 10 columns of 3 experts and 2 further numbers
  for (int step = 1; step <= 1000; ++step) {
    series.add(step, Json::array({load("a", {step, 1, step % 2})}));
    ASSERT_LE(series.columns(), 10U);
  }
  const Json json = series.json("");
  std::vector<double> sums;
  for (const Json& row : json["tokens"]) {
    const auto values = row.get<std::vector<double>>();
    sums.push_back(std::accumulate(values.begin(), values.end(), 0.0));
  }
  EXPECT_EQ(sums, (std::vector<double>{500500, 1000, 500}));
  const auto from = json["from"].get<std::vector<int>>(), to = json["to"].get<std::vector<int>>();
  ASSERT_GE(from.size(), 5U);
  EXPECT_EQ(from[0], 1);
  EXPECT_EQ(to.back(), 1000);
  for (std::size_t i = 0; i + 1 < from.size(); ++i) {
    EXPECT_EQ(to[i] + 1, from[i + 1]);
    EXPECT_EQ(to[i] - from[i], to[0] - from[0]);
  }
}

TEST(ExpertSeries, ARestartRemovesRepeatedSteps) {
  RunSeries run;
  const auto line = [&](int step, int tokens) {
    run.line(Json({{"step", step}, {"experts", Json::array({load("a", {tokens, 1})})}}).dump());
  };
  for (int step = 1; step <= 5; ++step) line(step, 10);
  line(4, 20);
  line(5, 30);
  const Json json = run.experts().json("");
  EXPECT_EQ(json["tokens"][0], Json::parse("[10.0, 10.0, 10.0, 20.0, 30.0]"));
  EXPECT_EQ(json["to"], Json::parse("[1, 2, 3, 4, 5]"));
  run.reset();
  EXPECT_TRUE(run.experts().empty());
}

TEST(ExpertSeries, IgnoresInvalidLines) {
  ExpertSeries series(100);
  for (const char* bad :
       {"3", "{}", "[]", "[3]", R"([{"layer": "a"}])", R"([{"layer": "a", "tokens": []}])",
        R"([{"layer": "a", "tokens": [-1]}])", R"([{"layer": "a", "tokens": ["x"]}])",
        R"([{"layer": 7, "tokens": [1]}])"}) {
    series.add(1, Json::parse(bad));
    EXPECT_TRUE(series.empty()) << bad;
  }
  series.add(
      1, Json::array({load("large", std::vector<std::int64_t>(50, 1))}));  // 8 columns do not fit
  EXPECT_TRUE(series.empty());
  series.add(1, Json::array({load("a", {1, 2})}));
  series.add(2, Json::array({load("a", {1, 2, 3})}));
  series.add(3, Json::array({load("b", {1, 2})}));
  series.add(4, Json::array({load("a", {1, 2}), load("b", {1, 2})}));
  EXPECT_EQ(series.columns(), 1U);
  Json broken = load("a", {3, 1});
  broken["dropped"] = nullptr;
  broken["entropy"] = "x";
  series.add(5, Json::array({broken}));
  EXPECT_EQ(series.json("a")["dropped"], Json::parse("[0.0, 0.0]"));
}

TEST(ExpertSeries, OtherExpertsMayFollowWhenAllStepsAreRepeated) {
  ExpertSeries series;
  series.add(1, Json::array({load("a", {1, 2})}));
  series.remove_from(1);
  series.add(1, Json::array({load("a", {1, 2, 3})}));
  EXPECT_EQ(series.json("a")["tokens"].size(), 3U);
}

}  // namespace
}  // namespace tessera::dashboard
