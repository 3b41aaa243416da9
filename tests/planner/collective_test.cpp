#include "tessera/planner/collective.h"

#include <gtest/gtest.h>

#include "tessera/planner/formulas.h"

namespace tessera::planner {
namespace {

class Collectives : public ::testing::TestWithParam<std::string> {};

TEST_P(Collectives, EveryRankEndsWithTheSumOverAllRanks) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const int per_node : {1, 2, 4, 16}) {
      if (GetParam() == "two-level" && ranks % std::min(per_node, ranks) != 0) continue;
      CollectiveInput ask;
      ask.algorithm = GetParam();
      ask.ranks = ranks;
      ask.per_node = per_node;
      const CollectiveTrace trace = trace_collective(ask);
      const auto& last = trace.steps.empty() ? trace.start : trace.steps.back().values;
      for (int c = 0; c < trace.chunks; ++c) {
        int sum = 0;
        for (const auto& row : trace.start) sum += row[static_cast<std::size_t>(c)];
        for (const auto& row : last) {
          EXPECT_EQ(row[static_cast<std::size_t>(c)], sum) << ranks << " " << per_node;
        }
      }
      // With equal links, the traced steps take the time of the formula.
      EXPECT_NEAR(trace.seconds, trace.closed_form, 1e-9 * trace.closed_form + 1e-15)
          << ranks << " " << per_node;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::Values("ring", "tree", "two-level"));

TEST(Collectives, RingSendsTheBytesOfTheFormula) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    CollectiveInput ask;
    ask.ranks = ranks;
    ask.latency = 1e-6;
    ask.between_latency = 1e-6;
    const CollectiveTrace trace = trace_collective(ask);
    EXPECT_EQ(static_cast<int>(trace.steps.size()), 2 * (ranks - 1));
    EXPECT_NEAR(trace.bytes_per_rank, ring_all_reduce_bytes(ask.bytes, ranks), 1);
  }
}

TEST(Collectives, RingIsAsSlowAsTheLinksBetweenNodes) {
  CollectiveInput ask;
  ask.ranks = 8;
  ask.per_node = 4;
  ask.between_bandwidth = ask.bandwidth / 4;
  const CollectiveTrace trace = trace_collective(ask);
  EXPECT_NEAR(trace.seconds, ring_all_reduce_time(ask.bytes, 8, ask.between_bandwidth, 0), 1e-12);
  EXPECT_NEAR(trace.seconds, trace.closed_form, 1e-12);
}

TEST(Collectives, TreeSendsByThePositionOfTheRank) {
  CollectiveInput ask;
  ask.algorithm = "tree";
  ask.ranks = 8;
  ask.per_node = 4;
  ask.bytes = 100;
  ask.between_bandwidth = ask.bandwidth / 10;
  const CollectiveTrace trace = trace_collective(ask);
  // Every rank but 0 sends its sum up once, and the result to each child.
  EXPECT_EQ(trace.sent, (std::vector<double>{300, 100, 200, 100, 300, 100, 200, 100}));
  EXPECT_NEAR(trace.seconds, trace.closed_form, 1e-9 * trace.closed_form);
}

}  // namespace
}  // namespace tessera::planner
