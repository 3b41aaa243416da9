#include "tessera/planner/run.h"

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tests/planner/run_case.h"

namespace tessera::planner {
namespace {

std::int64_t numel(const ParamSpec& spec) {
  std::int64_t count = 1;
  for (const std::int64_t size : spec.shape) count *= size;
  return count;
}

RunConfig question(int stage, int dp, const char* layout = "fp32") {
  return small_run(find_model_shape("gpt-tiny"), layout, stage, data_parallel(dp));
}

TEST(Run, ParametersAddUpToTheShape) {
  for (const char* name : {"gpt-tiny", "gpt2-124m", "gpt2-xl", "gpt3-13b", "llama3-8b"}) {
    const ModelShape shape = find_model_shape(name);
    std::int64_t sum = 0;
    for (const ParamSpec& each : model_params(shape, 1)) sum += numel(each);
    EXPECT_EQ(sum, shape.params()) << name;
  }
}

// Without padding (all sizes of gpt-tiny are divisible by 16 · 2) it equals the formula of state.h.
TEST(Run, StateEqualsTheFormulaWithoutPadding) {
  for (const char* layout : {"fp32", "bf16", "bf16-fp32grad", "bf16-nomaster"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int dp : {1, 2, 4}) {
        const RunConfig q = question(stage, dp, layout);
        const RunPlan plan = plan_run(q);
        const auto psi = static_cast<double>(q.model.params());
        const StateBytes want = state_bytes(q.layout, stage, psi, dp, q.policy());
        EXPECT_DOUBLE_EQ(static_cast<double>(plan.params), want.params);
        EXPECT_DOUBLE_EQ(static_cast<double>(plan.grads), want.grads);
        EXPECT_DOUBLE_EQ(static_cast<double>(plan.optimizer), want.optimizer);
      }
    }
  }
}

TEST(Run, PaddingIsCounted) {
  RunConfig q = question(2, 3);
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

TEST(Run, TrafficOfEveryStageMatchesTheFormula) {
  const std::int64_t d = find_model_shape("gpt-tiny").params() * 4;
  for (const int k : {1, 3}) {
    const std::int64_t want[] = {2 * d, 2 * d, (k + 1) * d, 3 * k * d};
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int dp : {1, 2, 4}) {
        RunConfig q = question(stage, dp);
        q.grad_accum = k;
        EXPECT_EQ(plan_run(q).sent_bytes(), want[stage] / dp * (dp - 1)) << stage << " " << dp;
      }
    }
  }
  RunConfig keep = question(3, 2);
  keep.keep_params = true;
  EXPECT_EQ(plan_run(keep).sent_bytes(), d);
}

TEST(Run, PolicyLastKeepsTheWholeGradient) {
  RunConfig q = question(2, 2);
  q.grad_reduce = ReducePolicy::last;
  EXPECT_EQ(plan_run(q).grads, q.model.params() * 4);
}

TEST(Activations, MoreRecomputationKeepsLess) {
  ProgramInput q{find_model_shape("gpt2-124m"), 4, 256, 2, Recompute::none};
  const std::int64_t none = held_bytes(q);
  q.recompute = Recompute::selective;
  const std::int64_t selective = held_bytes(q);
  q.recompute = Recompute::full;
  const std::int64_t full = held_bytes(q);
  EXPECT_GT(none, selective);
  EXPECT_GT(selective, full);
  EXPECT_GT(full, 12 * 4 * 256 * 768 * 2);
}

// `tessera plan` for Tessera and the table of `tessera train` give the same prediction.
TEST(Run, MemoryAndTrafficEqualThePlanForTessera) {
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      for (const int pp : {1, 2}) {
        RunConfig q = RunConfig::for_plan();
        q.model = find_model_shape(model);
        q.software = Software::tessera;
        q.layout = parse_state_layout("fp32");
        q.seq = 64, q.micro_batch = 4, q.grad_accum = 4;
        q.zero = stage, q.axes.set_dp(3), q.axes.set(Axis::pp, pp);
        q = resolve(q);
        const std::vector<Memory> ranks = memory_by_rank(q);
        ASSERT_EQ(ranks.size(), static_cast<std::size_t>(pp));
        for (int r = 0; r < pp; ++r) {
          const RunPlan run = plan_run(q, {{Axis::pp, r}});
          const Memory& plan = ranks[static_cast<std::size_t>(r)];
          EXPECT_EQ(plan.params, static_cast<double>(run.params));
          EXPECT_EQ(plan.activations, static_cast<double>(run.activations));
          EXPECT_EQ(plan.buffers, static_cast<double>(run.buffers));
          EXPECT_EQ(plan.temporary, static_cast<double>(run.temporary));
          EXPECT_EQ(plan.total(), static_cast<double>(run.total()));
        }
      }
    }
  }
}

// A rank's shard of a parameter matches its specification if tp divides it.
TEST(Run, ShardsMatchTheParameterSpecifications) {
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const int tp : {1, 2, 4}) {
      RunConfig q = question(0, 1);
      q.model = find_model_shape(model);
      q.axes.set(Axis::tp, tp);
      for (const ParamSpec& spec : model_params(q.model, tp)) {
        for (int rank = 0; rank < tp; ++rank) {
          std::int64_t want = 1;
          for (const std::int64_t size : local_shape(spec, q.axes, {{Axis::tp, rank}}))
            want *= size;
          EXPECT_EQ(elements_on_rank(q, spec), want) << spec.name << " tp " << tp;
        }
      }
    }
  }
}

TEST(Run, BuffersAreBucketsAndGatheredUnits) {
  RunConfig q = question(1, 2);
  EXPECT_EQ(run_memory(q).buffers, 0);  // gradients are reduced in place
  q = question(2, 2);
  q.bucket_bytes = 1e12;  // all in one bucket
  EXPECT_EQ(run_memory(q).buffers, 2 * 4 * q.model.params());
  q.bucket_bytes = 1;  // one parameter each; the largest is a matrix of the MLP
  EXPECT_EQ(run_memory(q).buffers, 2 * 4 * 512 * 128);
  q = question(3, 2);
  q.bucket_bytes = 1;
  const std::int64_t lanes = 2 * 4 * 512 * 128, block = q.model.layer_params();
  const std::int64_t outside = q.model.params() - q.model.block_params();
  EXPECT_EQ(run_memory(q).buffers, lanes + 4 * (outside + 2 * block));
  q.prefetch = false;
  EXPECT_EQ(run_memory(q).buffers, lanes + 4 * (outside + block));
  q.keep_params = true;
  EXPECT_EQ(run_memory(q).buffers, lanes + 4 * q.model.params());
  q.gather = Gather::alias;
  EXPECT_EQ(run_memory(q).buffers, lanes);
}

// Counted by chunk along the schedule; never more than the closed form for equal chunks.
TEST(Run, ActivationsOfSeveralChunksFollowTheSchedule) {
  RunConfig q = question(0, 1);
  q.model = find_model_shape("llama-tiny");  // its head is not tied
  q.axes.set(Axis::pp, 2), q.grad_accum = 6, q.micro_batch = 2, q.seq = 64;
  q.schedule = ScheduleChoice::interleaved, q.chunks = 2;
  for (const int rank : {0, 1}) {
    const Coordinate at{{Axis::pp, rank}};
    const std::int64_t several = run_memory(q, at).activations;
    RunConfig one = q;
    one.schedule = ScheduleChoice::one_f_one_b, one.chunks = 1;
    EXPECT_GE(several, run_memory(one, at).activations / 2);
    one.schedule = ScheduleChoice::gpipe;
    EXPECT_LE(several, run_memory(one, at).activations);
  }
}

TEST(Run, SoftwareAndGatherFollowTheHardware) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("gpt-tiny");
  q.axes.set_dp(2);
  EXPECT_EQ(resolve(q).software, Software::megatron);
  EXPECT_EQ(resolve(q).gather, Gather::copy);
  q.hardware.cpu = true;
  EXPECT_EQ(resolve(q).software, Software::tessera);
  EXPECT_EQ(resolve(q).gather, Gather::alias);
  q.per_node = 1;  // two hosts
  EXPECT_EQ(resolve(q).gather, Gather::copy);
  q.gather = Gather::alias, q.zero = 3;
  EXPECT_THROW(resolve(q), UsageError);
}

}  // namespace
}  // namespace tessera::planner
