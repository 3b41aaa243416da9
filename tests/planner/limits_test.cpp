#include "tessera/planner/limits.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/planner/plan.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

RunConfig gpt2_xl(int dp, int stage) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("gpt2-xl");
  q.layout = parse_state_layout("bf16-fp32grad");
  q.hardware = built_in().find("h100");
  q.axes.set_dp(dp), q.zero = stage;
  return resolve(q);
}

// As reported for Megatron-LM: 15 on one GPU; on 8, 120 plain and 168 with a sharded optimizer.
TEST(Limits, LargestBatchMatchesTheReferenceRuns) {
  EXPECT_EQ(largest_batches(gpt2_xl(1, 0)).asked.global_batch, 15);
  EXPECT_EQ(largest_batches(gpt2_xl(8, 0)).asked.global_batch, 120);
  EXPECT_EQ(largest_batches(gpt2_xl(8, 1)).asked.global_batch, 168);
}

TEST(Limits, OneMoreDoesNotFit) {
  for (const char* model : {"gpt2-124m", "gpt2-xl", "llama2-7b", "llama3-70b"}) {
    RunConfig q = RunConfig::for_plan();
    q.model = find_model_shape(model);
    q.hardware = built_in().find("a100-80");
    q.axes.set_dp(8);
    for (const BatchLimit& limit : largest_batches(resolve(q)).rows) {
      const auto fits = [&](std::int64_t batch) {
        RunConfig other = q;
        other.axes.set_dp(limit.dp), other.zero = limit.zero, other.micro_batch = batch;
        return memory_of(resolve(other)).total() <= usable_memory(q.hardware);
      };
      EXPECT_EQ(limit.global_batch, limit.micro_batch * limit.dp);
      EXPECT_FALSE(fits(limit.micro_batch + 1)) << model;
      if (limit.micro_batch > 0) {
        EXPECT_TRUE(fits(limit.micro_batch)) << model;
      }
    }
  }
}

TEST(Limits, MoreShardingNeverFitsLess) {
  const BatchLimits limits = largest_batches(gpt2_xl(8, 0));
  ASSERT_EQ(limits.rows.size(), 16U);
  for (std::size_t i = 4; i < limits.rows.size(); ++i) {
    EXPECT_GE(limits.rows[i].micro_batch, limits.rows[i - 4].micro_batch);
  }
}

// Other numbers of ranks are those that expert parallelism divides.
TEST(Limits, ExpertsAreSharedByAllRanksOfARow) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("mixtral-8x7b");
  q.hardware = built_in().find("h100");
  q.axes.set_dp(8);
  q.axes.set(Axis::ep, 4);
  std::set<int> degrees;
  for (const BatchLimit& limit : largest_batches(resolve(q)).rows) degrees.insert(limit.dp);
  EXPECT_EQ(degrees, (std::set<int>{4, 8}));
}

TEST(Limits, LargestModelKeepsItsProportionsAndFits) {
  const ModelLimits limits = largest_models(gpt2_xl(8, 0));
  double before = 0;
  for (const ModelLimit& limit : limits.rows) {
    EXPECT_LE(limit.memory, usable_memory(gpt2_xl(1, 0).hardware));
    EXPECT_EQ(limit.model.head_dim(), 64);
    EXPECT_EQ(limit.model.ffn, 4 * limit.model.hidden);
    EXPECT_NEAR(static_cast<double>(limit.model.hidden) / static_cast<double>(limit.model.layers),
                1600.0 / 48, 1);
    if (limit.dp == 8) {
      EXPECT_GE(limit.params, before);
      before = limit.params;
    }
  }
  EXPECT_GT(limits.rows.back().params, 5 * limits.rows.front().params);
}

TEST(Limits, LargestModelIsBoundedByStateIfOnlyTheSizeIsKnown) {
  RunConfig q = RunConfig::for_plan();
  q.params = 1;
  q.hardware.memory = 80e9;
  EXPECT_DOUBLE_EQ(largest_models(resolve(q)).asked.params, 5e9);
  q.hardware.memory = 32e9;
  q.layout = parse_state_layout("2,6,12");
  EXPECT_DOUBLE_EQ(largest_models(resolve(q)).asked.params, 1.6e9);
}

}  // namespace
}  // namespace tessera::planner
