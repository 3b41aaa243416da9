#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/state.h"
#include "tests/planner/built_in.h"
#include "tests/text.h"

namespace tessera::planner {
namespace {

double gb(const char* layout, int stage, double params, int dp) {
  return state_bytes(parse_state_layout(layout), stage, params, dp).total() / kGB;
}

TEST(State, MatchesWorkedExamples) {
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 0, 13e9, 8), 156);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 2, 13e9, 8), 42.25);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 3, 13e9, 8), 19.5);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 0, 70e9, 8), 840);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 1, 70e9, 8), 350);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 2, 70e9, 8), 227.5);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 3, 70e9, 8), 105);
  EXPECT_DOUBLE_EQ(64 * gb("bf16-nomaster", 0, 70e9, 64), 53'760);
  EXPECT_DOUBLE_EQ(gb("bf16", 3, 70e9, 64), 17.5);
  EXPECT_DOUBLE_EQ(gb("bf16", 0, 7e9, 1), 112);
  EXPECT_DOUBLE_EQ(gb("bf16", 3, 7e9, 8), 14);
}

TEST(State, MatchesSeventyBillionParametersByCategory) {
  const StateBytes bytes = state_bytes(parse_state_layout("bf16-nomaster"), 0, 70e9, 8);
  EXPECT_DOUBLE_EQ(bytes.params, 140 * kGB);
  EXPECT_DOUBLE_EQ(bytes.grads, 140 * kGB);
  EXPECT_DOUBLE_EQ(bytes.optimizer, 560 * kGB);
}

TEST(State, HasThePublishedBytesPerParameter) {
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 1, 1e9, 8), 5);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 2, 1e9, 8), 3.25);
  EXPECT_DOUBLE_EQ(gb("bf16-nomaster", 3, 1e9, 8), 1.5);
}

TEST(State, CountsMomentsAndMasterCopies) {
  const StateLayout layout = parse_state_layout("bf16");
  EXPECT_DOUBLE_EQ(layout.moments * 7e9 / kGB, 56);
  EXPECT_DOUBLE_EQ(layout.moments * 7e9 / 8 / kGB, 7);
  for (const auto& [params, want] :
       {std::pair{7e9, 70.0}, {70e9, 700.0}, {175e9, 1750.0}, {405e9, 4050.0}}) {
    EXPECT_DOUBLE_EQ((layout.param + layout.moments) * params / kGB, want);
  }
}

TEST(State, CountsSmallMoments) {
  StateLayout layout = parse_state_layout("bf16");
  layout.moments = 2 * bytes_per_moment(OptimizerState::int8);
  EXPECT_EQ(layout.total(), 10.125);
  const StateBytes bytes = state_bytes(layout, 3, 1024, 4);
  EXPECT_EQ(bytes.optimizer, 256 * 4 + 2 * (256 + 256 / 16));
  RunConfig q = RunConfig::for_plan();
  q.set("optimizer-state", "bf16");
  q.set("layout", "2,6,12");
  EXPECT_TRUE(
      contains(error_of([&] { resolve(q); }), "--optimizer-state: got bf16 with --layout 2,6,12"));
}

TEST(State, OffloadMovesOptimizerStateToFilesAndIsAdvisedIfNothingElseFits) {
  RunConfig q = RunConfig::for_plan();
  for (const auto& [name, text] :
       std::vector<std::pair<std::string, std::string>>{{"model", "gpt2-xl"},
                                                        {"layout", "bf16"},
                                                        {"hardware", "cpu"},
                                                        {"gpus", "1"},
                                                        {"micro-batch", "1"},
                                                        {"seq", "128"}}) {
    q.set(name, text);
  }
  const RunConfig in_memory = resolve(look_up(q, built_in()));
  q.set("offload", "optimizer");
  const RunConfig on_disk = resolve(look_up(q, built_in()));
  const Memory before = memory_of(in_memory), after = memory_of(on_disk);
  EXPECT_EQ(after.optimizer, 0);
  EXPECT_EQ(after.on_disk, before.optimizer);
  EXPECT_EQ(after.buffers - before.buffers, kRecordBuffers * kRecordElements * 12);
  const std::string advice = least_change_that_fits(in_memory);
  EXPECT_TRUE(contains(advice, "--offload optimizer fits")) << advice;
}

TEST(State, LargestModelMatchesWorkedExamples) {
  EXPECT_DOUBLE_EQ(largest_model(parse_state_layout("bf16"), 0, 1, 80 * kGB), 5e9);
  EXPECT_DOUBLE_EQ(largest_model(parse_state_layout("2,6,12"), 0, 1, 32 * kGB), 1.6e9);
}

TEST(State, IsShardedByAllThreeAxes) {  // 175B on 256 GPUs: tp 8, pp 4, dp 8, stage 2
  const StateBytes bytes = state_bytes(parse_state_layout("bf16-nomaster"), 2, 175e9 / 32, 8);
  EXPECT_NEAR(bytes.params / kGB, 10.94, 0.005);
  EXPECT_NEAR(bytes.optimizer / kGB, 5.47, 0.005);
  EXPECT_NEAR(bytes.grads / kGB, 1.37, 0.005);
  EXPECT_NEAR(bytes.total() / kGB, 17.77, 0.005);
}

TEST(State, MatchesMegatronsReport) {
  const double params = 1'555'356'800;  // as Megatron-LM counts gpt2-xl
  const double mib =
      state_bytes(parse_state_layout("bf16-fp32grad"), 0, params, 1).total() / (1 << 20);
  EXPECT_NEAR(mib, 26'699.47, 0.005);
}

TEST(State, ReducingOnceKeepsTheWholeGradient) {
  const StateLayout layout = parse_state_layout("bf16");
  for (const int stage : {2, 3}) {
    const auto each = state_bytes(layout, stage, 1e9, 4, ReducePolicy::each);
    const auto last = state_bytes(layout, stage, 1e9, 4, ReducePolicy::last);
    EXPECT_DOUBLE_EQ(last.grads, 4 * each.grads);
    EXPECT_DOUBLE_EQ(last.params + last.optimizer, each.params + each.optimizer);
  }
}

// For all stages and degrees: more sharding never needs more memory, and dp 1 shards nothing.
TEST(State, HigherStagesNeverNeedMore) {
  for (const StateLayout& layout : state_layouts()) {
    for (int dp = 1; dp <= 64; dp *= 2) {
      for (int stage = 1; stage <= 3; ++stage) {
        const double less = state_bytes(layout, stage, 1e9, dp).total();
        const double more = state_bytes(layout, stage - 1, 1e9, dp).total();
        if (dp == 1) {
          EXPECT_DOUBLE_EQ(less, more);
        } else {
          EXPECT_LT(less, more);
        }
      }
      EXPECT_DOUBLE_EQ(state_bytes(layout, 3, 1e9, dp).total(), layout.total() * 1e9 / dp);
    }
  }
}

TEST(Layout, ParsesNamesAndBytes) {
  EXPECT_EQ(parse_state_layout("bf16").total(), 16);
  EXPECT_EQ(parse_state_layout("bf16-fp32grad").total(), 18);
  EXPECT_EQ(parse_state_layout("bf16-nomaster").total(), 12);
  EXPECT_EQ(parse_state_layout("fp16").total(), 16);
  EXPECT_TRUE(parse_state_layout("fp16").fp16());
  EXPECT_EQ(parse_state_layout("fp32").total(), 16);
  EXPECT_EQ(parse_state_layout("2,6,12").total(), 20);
  for (const char* bad : {"", "bf61", "2,6", "2,6,12,1", "2,-6,12", "2, 6,12", "9999,1,1"}) {
    EXPECT_THROW(parse_state_layout(bad), UsageError) << bad;
  }
  EXPECT_THROW(sharding_of_stage(4), UsageError);
}

DataParallelTraffic sent(int stage, int dp, int k, bool keep = false) {
  TrafficInput q{stage, dp, k, 20 * kGB, 20 * kGB, default_reduce_policy(stage), keep};
  return data_parallel_traffic(q);
}

TEST(Traffic, IsAMultipleOfTheModelSizePerStep) {
  const double hop = 63.0 / 64 * 20 * kGB;
  for (const int k : {1, 4}) {
    EXPECT_DOUBLE_EQ(sent(0, 64, k).total(), 2 * hop);
    EXPECT_DOUBLE_EQ(sent(1, 64, k).total(), 2 * hop);
    EXPECT_DOUBLE_EQ(sent(2, 64, k).total(), (k + 1) * hop);
    EXPECT_DOUBLE_EQ(sent(3, 64, k).total(), 3 * k * hop);
    EXPECT_DOUBLE_EQ(sent(3, 64, k, true).total(), 2 * k * hop);
  }
  EXPECT_NEAR(sent(0, 64, 1).total() / kGB, 39.375, 1e-9);
  EXPECT_NEAR(sent(3, 64, 1).total() / kGB, 59.0625, 1e-9);
  EXPECT_EQ(sent(3, 1, 4).total(), 0);
}

}  // namespace
}  // namespace tessera::planner
