#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tessera/planner/formulas.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/state.h"
#include "tessera/schedule/schedule.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

Question gpt(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t seq) {
  Question q;
  q.model = gpt_shape(layers, hidden, heads, 50257, seq);
  q.hardware.memory = 80e9;
  return q;
}

// Over all ways to recompute, cut and attend: the formulas of formulas.h, layer by layer.
TEST(Memory, ActivationsOfAGptAreKorthikantis) {
  for (const int tp : {1, 2, 4, 8}) {
    for (const bool sequence : {false, true}) {
      for (const Attention attention : {Attention::fused, Attention::unfused}) {
        for (const Recompute what : {Recompute::none, Recompute::selective, Recompute::full}) {
          for (const int b : {1, 3}) {
            Question q = gpt(12, 2048, 16, 1024);
            q.axes.set(Axis::tp, tp), q.sequence_parallel = sequence, q.attention = attention;
            q.recompute = what, q.micro_batch = b;
            q = settle(q);
            const bool kept = attention == Attention::unfused && what == Recompute::none;
            double want = layer_activation_bytes(
                {1024, static_cast<double>(b), 2048, 16, tp, sequence, kept});
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

// The validator counts what a schedule holds; the planner has it in closed form.
TEST(Memory, InFlightIsWhatTheSchedulesProve) {
  for (const std::string& name : schedule::names()) {
    for (int p = 1; p <= 9; ++p) {
      for (int k = 1; k <= 33; ++k) {
        for (int v = 1; v <= 3; ++v) {
          if (name == "interleaved" ? k < p : v > 1) continue;
          Question q = gpt(64, 64, 1, 16);
          q.axes.set(Axis::pp, p), q.grad_accum = k, q.schedule = name;
          q.chunks = name == "zb-v" ? 2 : v;
          q = settle(q);
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

TEST(Memory, OneFOneBHoldsPAndGpipeK) {
  Question q = gpt(32, 1024, 16, 512);
  q.axes.set(Axis::pp, 4), q.grad_accum = 16;
  const double layer = layer_activations(settle(q));
  EXPECT_DOUBLE_EQ(memory_of(settle(q)).activations, 4 * 8 * layer);
  q.schedule = "gpipe";
  EXPECT_DOUBLE_EQ(memory_of(settle(q)).activations, 16 * 8 * layer);
}

TEST(Memory, ParametersOnRanksAddUp) {
  for (const ModelShape& shape : model_shapes()) {
    Question q;
    q.model = shape;
    EXPECT_DOUBLE_EQ(params_on_rank(settle(q), stage_shares(settle(q))[0]), real(shape.params()))
        << shape.name;
    for (const int pp : {2, 3, 4}) {
      q.axes.set(Axis::pp, pp);
      const Question settled = settle(q);
      double sum = 0;
      for (const auto& chunks : stage_shares(settled)) sum += params_on_rank(settled, chunks);
      // A tied table lies on the first and on the last rank.
      EXPECT_DOUBLE_EQ(sum, real(shape.params() + (shape.tied ? shape.vocab * shape.hidden : 0)));
    }
  }
}

TEST(Memory, TensorParallelismCutsAllButNormsAndPositions) {
  for (const char* model : {"gpt3-6.7b", "llama3-8b"}) {
    Question q;
    q.model = find_model_shape(model);
    const double whole = params_on_rank(settle(q), stage_shares(settle(q))[0]);
    for (const int tp : {2, 4, 8}) {
      q.axes.set(Axis::tp, tp);
      const double part = params_on_rank(settle(q), stage_shares(settle(q))[0]);
      EXPECT_GE(part, whole / tp);
      EXPECT_LT(part, 1.02 * whole / tp);
    }
  }
  // More ranks than kv-heads: each has one, so some are doubled.
  Question q;
  q.model = find_model_shape("llama3-8b");
  q.axes.set(Axis::tp, 8);
  const double at_eight = layer_params_on_rank(settle(q));
  q.axes.set(Axis::tp, 32);
  EXPECT_GT(layer_params_on_rank(settle(q)), at_eight / 4);
}

TEST(Memory, StateOfAModelKnownByItsSize) {
  Question q;
  q.params = 175e9;
  q.axes.set(Axis::tp, 8), q.axes.set(Axis::pp, 4), q.axes.set_dp(8), q.zero = 2;
  q.layout = parse_state_layout("bf16-nomaster");
  const Memory memory = memory_of(settle(q));
  EXPECT_NEAR(memory.params / kGB, 10.94, 0.005);
  EXPECT_NEAR(memory.optimizer / kGB, 5.47, 0.005);
  EXPECT_NEAR(memory.grads / kGB, 1.37, 0.005);
  EXPECT_NEAR(memory.total() / kGB, 17.77, 0.005);
}

TEST(Memory, PolicyLastKeepsWholeGradients) {
  Question q = gpt(12, 768, 12, 1024);
  q.axes.set_dp(8), q.grad_accum = 4, q.zero = 2;
  const Memory each = memory_of(settle(q));
  q.grad_reduce = ReducePolicy::last;
  const Memory last = memory_of(settle(q));
  EXPECT_DOUBLE_EQ(last.grads, 8 * each.grads);
  EXPECT_GT(each.buffers, last.buffers);
}

// Every lever that should save memory does, and none costs any.
TEST(Memory, LeversSave) {
  const std::vector<std::function<void(Question&)>> levers = {
      [](Question& q) { q.recompute = Recompute::full; },
      [](Question& q) { q.micro_batch = 2, q.grad_accum *= 2; },
      [](Question& q) { q.axes.set(Axis::tp, 2); },
      [](Question& q) { q.axes.set(Axis::pp, 2); },
  };
  for (const char* model : {"gpt2-124m", "gpt3-6.7b", "llama3-8b"}) {
    for (int stage = 0; stage <= 3; ++stage) {
      Question q;
      q.model = find_model_shape(model);
      q.axes.set_dp(4), q.micro_batch = 4, q.grad_accum = 4, q.zero = stage;
      const double before = memory_of(settle(q)).total();
      for (std::size_t i = 0; i < levers.size(); ++i) {
        Question less = q;
        levers[i](less);
        EXPECT_LT(memory_of(settle(less)).total(), before) << model << stage << " lever " << i;
      }
      if (stage == 3) continue;
      q.zero = stage + 1;
      EXPECT_LT(memory_of(settle(q)).total(), before) << model << stage;
    }
  }
}

}  // namespace
}  // namespace tessera::planner
