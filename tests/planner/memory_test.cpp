#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"
#include "tessera/schedule/schedule.h"
#include "tests/planner/built_in.h"
#include "tests/planner/published_formulas.h"

namespace tessera::planner {
namespace {

RunConfig gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t seq) {
  RunConfig q = RunConfig::for_plan();
  q.model = gpt_shape(layers, hidden, heads, 50257, seq);
  q.hardware.memory = 80e9;
  return q;
}

// For every recomputation, sharding and attention: equals the published formulas, layer by layer.
TEST(Memory, ActivationsOfAGptMatchKorthikantiEtAl) {
  for (const int tp : {1, 2, 4, 8}) {
    for (const bool sequence : {false, true}) {
      for (const Attention attention : {Attention::fused, Attention::unfused}) {
        for (const Recompute what : {Recompute::none, Recompute::selective, Recompute::full}) {
          for (const int b : {1, 3}) {
            RunConfig q = gpt(12, 2048, 16, 1024);
            q.axes.set(Axis::tp, tp), q.sequence_parallel = sequence, q.attention = attention;
            q.recompute = what, q.micro_batch = b;
            q = resolve(q);
            const bool kept = attention == Attention::unfused && what == Recompute::none;
            double want = layer_activation_bytes(
                {1024, static_cast<double>(b), 2048, 16, tp, sequence ? tp : 1, kept});
            if (what == Recompute::full) {
              want = recomputed_layer_bytes(1024, b, 2048) / (sequence ? tp : 1);
            }
            EXPECT_DOUBLE_EQ(memory_of(q).activations, 12 * want);
          }
        }
      }
    }
  }
}

// Compares the planner's closed form with the schedule validator's count.
TEST(Memory, InFlightEqualsTheSchedulesCount) {
  for (const std::string& name : schedule::names()) {
    for (int p = 1; p <= 9; ++p) {
      for (int k = 1; k <= 33; ++k) {
        for (int v = 1; v <= 3; ++v) {
          if (name == "interleaved" ? k < p : v > 1) continue;
          RunConfig q = gpt(64, 64, 1, 16);
          q.axes.set(Axis::pp, p), q.grad_accum = k;
          q.schedule = *find_named<ScheduleChoice>(name);
          q.chunks = name == "zb-v" ? 2 : v;
          q = resolve(q);
          const auto proof = schedule::validate(schedule::make(name, p, k, q.chunks));
          for (int r = 0; r < p; ++r) {
            EXPECT_EQ(in_flight(q, r), proof.in_flight[static_cast<std::size_t>(r)])
                << name << " p " << p << " k " << k << " v " << v << " rank " << r;
          }
        }
      }
    }
  }
}

TEST(Memory, OneFOneBHoldsPpAndGpipeAllMicroBatches) {
  RunConfig q = gpt(32, 1024, 16, 512);
  q.axes.set(Axis::pp, 4), q.grad_accum = 16;
  const double layer = layer_activations(resolve(q));
  EXPECT_DOUBLE_EQ(memory_of(resolve(q)).activations, 4 * 8 * layer);
  q.schedule = ScheduleChoice::gpipe;
  EXPECT_DOUBLE_EQ(memory_of(resolve(q)).activations, 16 * 8 * layer);
}

TEST(Memory, ParametersOfAllRanksAddUpToTheModel) {
  for (const ModelShape& shape : model_shapes()) {
    RunConfig q = RunConfig::for_plan();
    q.model = shape;
    EXPECT_DOUBLE_EQ(params_on_rank(resolve(q), chunk_layers(resolve(q))[0]), real(shape.params()))
        << shape.name;
    for (const int pp : {2, 3, 4}) {
      q.axes.set(Axis::pp, pp);
      const RunConfig resolved = resolve(q);
      double sum = 0;
      for (const auto& chunks : chunk_layers(resolved)) sum += params_on_rank(resolved, chunks);
      // A tied table is on the first and on the last rank.
      EXPECT_DOUBLE_EQ(sum, real(shape.params() + (shape.tied ? shape.vocab * shape.hidden : 0)));
    }
  }
}

TEST(Memory, TensorParallelismShardsAllButNormsAndPositions) {
  for (const char* model : {"gpt3-6.7b", "llama3-8b"}) {
    RunConfig q = RunConfig::for_plan();
    q.model = find_model_shape(model);
    const double whole = params_on_rank(resolve(q), chunk_layers(resolve(q))[0]);
    for (const int tp : {2, 4, 8}) {
      q.axes.set(Axis::tp, tp);
      const double part = params_on_rank(resolve(q), chunk_layers(resolve(q))[0]);
      EXPECT_GE(part, whole / tp);
      EXPECT_LT(part, 1.02 * whole / tp);
    }
  }
  // More ranks than KV heads: each rank has one, so some are replicated.
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("llama3-8b");
  q.axes.set(Axis::tp, 8);
  const double at_eight = layer_params_on_rank(resolve(q));
  q.axes.set(Axis::tp, 32);
  EXPECT_GT(layer_params_on_rank(resolve(q)), at_eight / 4);
}

TEST(Memory, CountsOnlyStateIfOnlyTheSizeIsKnown) {
  RunConfig q = RunConfig::for_plan();
  q.params = 175e9;
  q.axes.set(Axis::tp, 8), q.axes.set(Axis::pp, 4), q.axes.set_dp(8), q.zero = 2;
  q.layout = parse_state_layout("bf16-nomaster");
  const Memory memory = memory_of(resolve(q));
  EXPECT_NEAR(memory.params / kGB, 10.94, 0.005);
  EXPECT_NEAR(memory.optimizer / kGB, 5.47, 0.005);
  EXPECT_NEAR(memory.grads / kGB, 1.37, 0.005);
  EXPECT_NEAR(memory.total() / kGB, 17.77, 0.005);
}

TEST(Memory, PolicyLastKeepsWholeGradients) {
  RunConfig q = gpt(12, 768, 12, 1024);
  q.axes.set_dp(8), q.grad_accum = 4, q.zero = 2;
  const Memory each = memory_of(resolve(q));
  q.grad_reduce = ReducePolicy::last;
  const Memory last = memory_of(resolve(q));
  EXPECT_DOUBLE_EQ(last.grads, 8 * each.grads);
  EXPECT_GT(each.buffers, last.buffers);
}

// Every option that should save memory does, and none costs memory.
TEST(Memory, EveryMemoryOptionSavesMemory) {
  const std::vector<std::function<void(RunConfig&)>> levers = {
      [](RunConfig& q) { q.recompute = Recompute::full; },
      [](RunConfig& q) { q.micro_batch = 2, q.grad_accum *= 2; },
      [](RunConfig& q) { q.axes.set(Axis::tp, 2); },
      [](RunConfig& q) { q.axes.set(Axis::pp, 2); },
  };
  for (const char* model : {"gpt2-124m", "gpt3-6.7b", "llama3-8b"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      RunConfig q = RunConfig::for_plan();
      q.model = find_model_shape(model);
      q.axes.set_dp(4), q.micro_batch = 4, q.grad_accum = 4, q.zero = stage;
      const double before = memory_of(resolve(q)).total();
      for (std::size_t i = 0; i < levers.size(); ++i) {
        RunConfig less = q;
        levers[i](less);
        EXPECT_LT(memory_of(resolve(less)).total(), before) << model << stage << " lever " << i;
      }
      if (stage == 3) continue;
      q.zero = stage + 1;
      EXPECT_LT(memory_of(resolve(q)).total(), before) << model << stage;
    }
  }
}

}  // namespace
}  // namespace tessera::planner
