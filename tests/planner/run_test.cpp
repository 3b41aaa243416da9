#include "tessera/planner/run.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/planner/parameters.h"

namespace tessera::planner {
namespace {

std::int64_t numel(const ParamSpec& spec) {
  std::int64_t count = 1;
  for (const std::int64_t size : spec.shape) count *= size;
  return count;
}

RunQuestion question(int stage, int dp, const char* layout = "fp32") {
  RunQuestion q;
  q.model = find_model_shape("gpt-tiny");
  q.layout = parse_state_layout(layout);
  q.stage = stage;
  q.dp = dp;
  q.policy = default_reduce_policy(stage);
  return q;
}

TEST(Run, ChunksAreMultiplesOf16AndCoverTheParameter) {
  for (const std::int64_t numel : {0, 1, 15, 16, 17, 31, 33, 100, 1000, 65'536}) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 7, 64}) {
      const std::int64_t chunk = chunk_elements(numel, ranks);
      EXPECT_EQ(chunk % 16, 0);
      EXPECT_GE(chunk * ranks, numel);
      EXPECT_LT(chunk * ranks, numel + 16 * ranks + ranks);
    }
  }
}

TEST(Run, ParametersAddUpToTheShape) {
  for (const char* name : {"gpt-tiny", "gpt2-124m", "gpt2-xl", "gpt3-13b", "llama3-8b"}) {
    const ModelShape shape = find_model_shape(name);
    std::int64_t sum = 0;
    for (const ParamSpec& each : model_params(shape, 1)) sum += numel(each);
    EXPECT_EQ(sum, shape.params()) << name;
  }
}

// Without padding (all sizes of gpt-tiny divide by 16 · 2) it is the formula of state.h.
TEST(Run, StateIsTheFormulaWhereNothingIsPadded) {
  for (const char* layout : {"fp32", "bf16", "bf16-fp32grad", "bf16-nomaster"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int dp : {1, 2, 4}) {
        const RunQuestion q = question(stage, dp, layout);
        const RunPlan plan = plan_run(q);
        const auto psi = static_cast<double>(q.model.params());
        const StateBytes want = state_bytes(q.layout, stage, psi, dp, q.policy);
        EXPECT_DOUBLE_EQ(static_cast<double>(plan.params), want.params);
        EXPECT_DOUBLE_EQ(static_cast<double>(plan.grads), want.grads);
        EXPECT_DOUBLE_EQ(static_cast<double>(plan.optimizer), want.optimizer);
      }
    }
  }
}

TEST(Run, PaddingIsCounted) {
  RunQuestion q = question(2, 3);
  q.model = gpt_shape(1, 10, 2, 11, 7);
  std::int64_t part = 0;
  for (const ParamSpec& each : model_params(q.model, 1)) {
    const std::int64_t third = (numel(each) + 2) / 3;
    part += third % 16 == 0 ? third : third + 16 - third % 16;
  }
  const RunPlan plan = plan_run(q);
  EXPECT_EQ(plan.params, 3 * part * 4);
  EXPECT_EQ(plan.grads, part * 4);
  EXPECT_EQ(plan.optimizer, part * 8);
  EXPECT_EQ(plan.sent_bytes(),
            2 * part * 4 + 2 * part * 4);  // reduce-scatter, all-gather: 2/3 each
}

TEST(Run, TrafficOfEveryStage) {
  const std::int64_t d = find_model_shape("gpt-tiny").params() * 4;
  for (const int k : {1, 3}) {
    const std::int64_t want[] = {2 * d, 2 * d, (k + 1) * d, 3 * k * d};
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int dp : {1, 2, 4}) {
        RunQuestion q = question(stage, dp);
        q.accumulation = k;
        EXPECT_EQ(plan_run(q).sent_bytes(), want[stage] / dp * (dp - 1)) << stage << " " << dp;
      }
    }
  }
  RunQuestion keep = question(3, 2);
  keep.keep_params = true;
  EXPECT_EQ(plan_run(keep).sent_bytes(), d);
}

TEST(Run, PolicyLastKeepsTheWholeGradient) {
  RunQuestion q = question(2, 2);
  q.policy = ReducePolicy::last;
  EXPECT_EQ(plan_run(q).grads, q.model.params() * 4);
}

TEST(Activations, LessIsKeptTheMoreIsRecomputed) {
  GptActivations q{find_model_shape("gpt2-124m"), 4, 256, 2, Recompute::none};
  const std::int64_t none = gpt_activation_bytes(q);
  q.recompute = Recompute::selective;
  const std::int64_t selective = gpt_activation_bytes(q);
  q.recompute = Recompute::full;
  const std::int64_t full = gpt_activation_bytes(q);
  EXPECT_GT(none, selective);
  EXPECT_GT(selective, full);
  EXPECT_GT(full, 12 * 4 * 256 * 768 * 2);
}

TEST(Activations, Names) {
  for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
    EXPECT_EQ(parse_recompute(name(mode)), mode);
  }
  EXPECT_THROW(parse_recompute("some"), UsageError);
}

}  // namespace
}  // namespace tessera::planner
