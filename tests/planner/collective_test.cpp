#include "tessera/planner/collective.h"

#include <gtest/gtest.h>

#include "tessera/planner/formulas.h"

namespace tessera::planner {
namespace {

class Collectives : public ::testing::TestWithParam<std::string> {};

TEST_P(Collectives, EveryRankEndsWithTheSumsOfAll) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const int per_node : {1, 2, 4, 16}) {
      if (GetParam() == "two-level" && ranks % std::min(per_node, ranks) != 0) continue;
      CollectiveAsk ask;
      ask.algorithm = GetParam();
      ask.ranks = ranks;
      ask.per_node = per_node;
      const CollectiveStory story = tell_collective(ask);
      const auto& last = story.steps.empty() ? story.start : story.steps.back().values;
      for (int c = 0; c < story.chunks; ++c) {
        int sum = 0;
        for (const auto& row : story.start) sum += row[static_cast<std::size_t>(c)];
        for (const auto& row : last) {
          EXPECT_EQ(row[static_cast<std::size_t>(c)], sum) << ranks << " " << per_node;
        }
      }
      // The told steps take as long as the formula says where all links are alike.
      EXPECT_NEAR(story.seconds, story.closed_form, 1e-9 * story.closed_form + 1e-15)
          << ranks << " " << per_node;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::Values("ring", "tree", "two-level"));

TEST(Collectives, ARingSendsWhatTheFormulaSays) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    CollectiveAsk ask;
    ask.ranks = ranks;
    ask.latency = 1e-6;
    ask.between_latency = 1e-6;
    const CollectiveStory story = tell_collective(ask);
    EXPECT_EQ(static_cast<int>(story.steps.size()), 2 * (ranks - 1));
    EXPECT_NEAR(story.bytes_per_rank, ring_all_reduce_bytes(ask.bytes, ranks), 1);
  }
}

}  // namespace
}  // namespace tessera::planner
