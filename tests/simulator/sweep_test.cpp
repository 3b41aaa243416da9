#include "tessera/simulator/sweep.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/planner/formulas.h"

namespace tessera::simulator {
namespace {

// Returns a step of one second with an all-reduce, on a network of the given speed.
SweepCase data_parallel(int dp, double bandwidth, double latency) {
  SweepCase one;
  Scenario& s = one.scenario;
  planner::StepChunk chunk;
  chunk.forward = 0.4;
  chunk.backward_input = chunk.backward_weight = 0.3;
  chunk.grad_bytes = chunk.param_bytes = 1e9;
  s.chunks = planner::equal_chunks(1, 1, chunk);
  s.topology.inside = s.topology.nic = {bandwidth, latency};
  s.topology.algorithm = planner::Algorithm::ring;
  s.axes.set_dp(dp);
  one.tokens = 1000.0 * dp;
  return one;
}

TEST(Sweep, ParsesRanges) {
  EXPECT_EQ(parse_sweep("dp=1..8").sizes, (std::vector<int>{1, 2, 4, 8}));
  EXPECT_EQ(parse_sweep("tp=3..20").sizes, (std::vector<int>{3, 6, 12, 20}));
  EXPECT_EQ(parse_sweep("dp=1..3").sizes, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(parse_sweep("dp=4..4").sizes, std::vector<int>{4});
  EXPECT_EQ(parse_sweep("pp=5").sizes, std::vector<int>{5});
  EXPECT_EQ(parse_sweep("dp=1..8,6,4,24").sizes, (std::vector<int>{1, 2, 4, 6, 8, 24}));
  EXPECT_EQ(parse_sweep("dp=1..1048576").sizes.size(), 21U);
  for (const char* bad :
       {"", "dp", "dp=", "dp=..", "dp=1..", "dp=..4", "dp=0..4", "dp=4..1", "dp=1..x", "dp=1.5",
        "xp=1..4", "dp=1..4096000", "dp=1...4", "dp=,", "dp=1,", "dp=1,,2"}) {
    EXPECT_THROW(parse_sweep(bad), UsageError) << bad;
  }
}

TEST(Sweep, EfficiencyIsThroughputPerGpu) {
  const SweepRange range = parse_sweep("dp=8..64");
  const auto rows = sweep(range, 0.05, [](int dp) { return data_parallel(dp, 1e10, 1e-6); });
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].efficiency, 1);
  EXPECT_EQ(rows[0].law, 1);
  for (const SweepRow& row : rows) {
    EXPECT_NEAR(row.tokens_per_s, 1000.0 * row.size / row.step, 1e-9);
    EXPECT_NEAR(row.efficiency, rows[0].step / row.step, 1e-12);
    EXPECT_NEAR(row.law,
                planner::scaling_efficiency(row.size, 0.05) / planner::scaling_efficiency(8, 0.05),
                1e-12);
  }
}

// A fast network hides all communication, which is better than the law. A slow one is worse.
TEST(Sweep, ReportsWhereTheLawFails) {
  const SweepRange range = parse_sweep("dp=1..64");
  const auto quick = sweep(range, 0.05, [](int dp) { return data_parallel(dp, 1e12, 0); });
  EXPECT_GT(quick.back().efficiency, 0.99);
  const std::string better = compare_with_law(range, quick, 0.05);
  EXPECT_NE(better.find("From dp 4 on the simulation does better"), std::string::npos) << better;
  EXPECT_NE(better.find("exposed communication takes 0."), std::string::npos) << better;
  const auto slow = sweep(range, 0.05, [](int dp) { return data_parallel(dp, 1e9, 0); });
  const std::string worse = compare_with_law(range, slow, 0.05);
  EXPECT_NE(worse.find("From dp 2 on it does worse"), std::string::npos) << worse;
  EXPECT_NE(worse.find("data-parallel"), std::string::npos) << worse;
  const auto lawful =
      sweep(parse_sweep("dp=1"), 0.05, [](int dp) { return data_parallel(dp, 1e9, 0); });
  EXPECT_NE(compare_with_law(range, lawful, 0.05).find("within"), std::string::npos);
}

TEST(Sweep, KeepsInvalidSizesWithTheReason) {
  const SweepRange range = parse_sweep("dp=1..8");
  const auto make = [](int dp) {
    if (dp == 4) throw UsageError("not four");
    return data_parallel(dp, 1e10, 0);
  };
  const auto rows = sweep(range, 0.05, make);
  EXPECT_EQ(rows[2].refused, "not four");
  EXPECT_GT(rows[3].efficiency, 0);
  EXPECT_THROW(sweep(range, 0.05, [](int) -> SweepCase { throw UsageError("none"); }), UsageError);
}

TEST(Sweep, DrawsSvg) {
  for (const char* text : {"dp=1", "dp=1..2", "dp=1..4096"}) {
    const SweepRange range = parse_sweep(text);
    const auto rows = sweep(range, 0.05, [](int dp) { return data_parallel(dp, 1e9, 1e-5); });
    const std::string svg = sweep_svg(range, rows, 0.05, "a < b & c");
    EXPECT_EQ(svg.rfind("<svg", 0), 0U);
    EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
    EXPECT_EQ(svg.find("nan"), std::string::npos);
    EXPECT_EQ(svg.find("inf"), std::string::npos);
    EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
  }
}

}  // namespace
}  // namespace tessera::simulator
