// Time of adapters: no gradients, optimizer work or traffic for the frozen model.

#include <gtest/gtest.h>

#include <string>

#include "tessera/core/text.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/step_time.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

// Returns the FLOPs of a step, summed over the kernels from which it is timed.
double counted_flops(const RunConfig& q) {
  const auto all = [](const PartWork& part) {
    return (part.forward + part.backward_input + part.backward_weight).flops;
  };
  const auto of = [&](ProgramPart part) { return all(part_work(q, part)); };
  const double layers =
      real(q.model.layers - 1) * of(ProgramPart::layer) + of(ProgramPart::first_layer);
  return (layers + of(ProgramPart::embedding) + of(ProgramPart::head)) * real(q.micros()) * q.dp();
}

// Counts the full square of attention, as the formula does.
RunConfig adapted(const char* model, const char* rank, const char* targets) {
  RunConfig settings = RunConfig::for_plan();
  for (const auto& [name, value] : {std::pair{"model", model},
                                    {"software", "tessera"},
                                    {"hardware", "cpu"},
                                    {"layout", "fp32"},
                                    {"attention", "unfused"},
                                    {"micro-batch", "2"},
                                    {"grad-accum", "4"},
                                    {"dp", "2"}}) {
    settings.set(name, value);
  }
  if (std::string(rank) != "0") {  // the model itself
    settings.set("lora-rank", rank);
    settings.set("lora-targets", targets);
  }
  return resolve(look_up(settings, built_in()));
}

TEST(AdaptersInTime, KernelFlopsEqualTheFormula) {
  for (const char* rank : {"0", "1", "8", "64"}) {
    for (const char* targets : {"auto", "all", "qkv", "o", "fc", "down", "o,down"}) {
      for (const char* model : {"gpt2-124m", "llama3.2-1b", "llama2-70b"}) {
        const RunConfig q = adapted(model, rank, targets);
        EXPECT_NEAR(counted_flops(q) / model_flops(q), 1, 1e-9) << model << rank << targets;
      }
    }
  }
}

// Hand count for a GPT with adapters on qkv: frozen matrices twice (forward and input gradient),
// attention and adapters three times, no gradient of the first block's input.
TEST(AdaptersInTime, FlopsOfAGptMatchAHandCount) {
  for (const double r : {1.0, 8.0, 64.0}) {
    const RunConfig q = adapted("gpt2-124m", std::to_string(std::int64_t(r)).c_str(), "auto");
    const double h = 768, layers = 12, seq = 1024, vocab = real(q.model.vocab);
    const double tokens = real(q.global_batch) * seq;
    const double each = 2 * 12 * h * h + 3 * (2 * seq * h + 4 * r * h);
    const double want = 2 * tokens * (layers * each + 2 * h * vocab - 3 * h * h - r * h);
    EXPECT_NEAR(model_flops(q) / want, 1, 1e-12) << r;
    EXPECT_NEAR(counted_flops(q) / want, 1, 1e-12) << r;
  }
}

// A plan's traffic equals that of a run, exactly if nothing is padded, and the timed step moves
// these bytes.
TEST(AdaptersInTime, TrafficEqualsThatOfARun) {
  std::vector<ModelShape> shapes = {gpt_shape(4, 128, 8, 128, 32), find_model_shape("llama-tiny")};
  shapes[1].hidden = 128, shapes[1].ffn = 256, shapes[1].vocab = 128;
  for (const ModelShape& shape : shapes) {
    for (const char* targets : {"auto", "all", "o"}) {
      for (const int tp : {1, 2}) {
        for (const int pp : {1, 2}) {
          for (int zero = 0; zero <= 3; ++zero) {
            RunConfig q = RunConfig::for_plan();
            q.model = shape;
            q.model.lora = {8, 16, targets};
            q.seq = 16, q.zero = zero, q.micro_batch = 2, q.grad_accum = 4;
            q.axes.set_dp(2), q.axes.set(Axis::tp, tp), q.axes.set(Axis::pp, pp);
            q.layout = parse_state_layout("fp32");
            q.software = Software::tessera;
            q.hardware = built_in().find("cpu");
            q = resolve(q);
            const std::string what =
                str(shape.name, " ", targets, " tp ", tp, " pp ", pp, " zero ", zero);
            double dp = 0, others = 0;
            for (int rank = 0; rank < pp; ++rank) {
              const RunPlan run = plan_run(q, {{Axis::pp, rank}});
              dp = std::max(dp, real(run.sent[Axis::dp_shard]));
              others = std::max(others, real(run.sent[Axis::tp] + run.sent[Axis::pp]));
            }
            const Traffic traffic = traffic_of(q);
            EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], dp) << what;
            if (pp == 1) {
              EXPECT_DOUBLE_EQ(traffic.sent[Axis::tp], others) << what;
            }
            double timed = 0;
            const Step step = describe_step(q);
            for (const auto& chunks : step.chunks) {
              const StepChunk& chunk = chunks.front();
              const double passes = zero == 3 ? 2 * real(q.micros()) : zero > 0 ? 1 : 0;
              const double reduces = zero >= 2 ? real(q.micros()) : zero == 0 ? 2 : 1;
              timed =
                  std::max(timed, (passes * chunk.param_bytes + reduces * chunk.grad_bytes) / 2);
            }
            EXPECT_DOUBLE_EQ(timed, dp) << what;
            EXPECT_EQ(step.tied_bytes, 0) << what;
          }
        }
      }
    }
  }
}

// No gradients of frozen weights and almost no optimizer work; time grows with the LoRA rank.
TEST(AdaptersInTime, TakeLessTimeThanTrainingAllParameters) {
  for (const char* model : {"gpt2-124m", "llama3.2-1b"}) {
    for (const char* zero : {"0", "1", "3"}) {
      const auto time = [&](const char* rank) {
        RunConfig q = adapted(model, rank, "all");
        q.zero = std::stoi(zero);
        return step_time(resolve(q));
      };
      const StepTime whole = time("0"), thin = time("8"), thick = time("64");
      EXPECT_LT(thin.compute, whole.compute) << model << zero;
      EXPECT_GT(thin.compute, 0.6 * whole.compute) << model << zero;
      EXPECT_LT(thin.optimizer, 0.1 * whole.optimizer) << model << zero;
      EXPECT_LT(thin.compute, thick.compute) << model << zero;
      EXPECT_LT(thin.optimizer, thick.optimizer) << model << zero;
    }
  }
}

}  // namespace
}  // namespace tessera::planner
