// Compares all stages bit by bit with each other, and with one process without an engine.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tests/combinations.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

class Threads : public ::testing::Environment {
 public:
  void SetUp() override { at::set_num_threads(1); }
};
const auto* const kThreads = ::testing::AddGlobalTestEnvironment(new Threads);

Case make_case(const std::string& net, int ranks, int stage, const std::string& layout = "fp32",
               int micro_batches = 1) {
  Case run;
  run.net = net;
  run.ranks = ranks;
  run.options.stage = stage;
  run.options.layout = parse_state_layout(layout);
  run.options.micro_batches = micro_batches;
  run.options.clip_norm = 0.5;
  run.options.bucket_bytes = 300;
  run.options.optimizer = AdamW{.lr = 1e-2};
  return run;
}

const std::vector<std::string> kNets = {"mlp", "conv", "tied", "odd"};

// Without accumulation all stages have the same bits. With it stages 0 and 1 agree, and 2 and 3,
// which reduce after every micro-batch. The bytes sent equal the formula.
TEST(Oracle, StagesAreBitwiseEqual) {
  std::vector<StateLayout> layouts;
  for (const StateLayout& layout : state_layouts()) {
    if (!layout.fp16()) layouts.push_back(layout);  // on GPUs only
  }
  for (const auto& [net, ranks, layout, micro_batches] :
       combinations(kNets, std::vector{1, 2, 3, 4}, layouts, std::vector{1, 3})) {
    std::vector<Result> stages;
    for (int stage = 0; stage < 4; ++stage) {
      const Case run = make_case(net, ranks, stage, layout.name, micro_batches);
      stages.push_back(train(run));
      EXPECT_EQ(stages.back().sent, stages.back().expected) << run.describe();
    }
    const std::string what = make_case(net, ranks, 0, layout.name, micro_batches).describe();
    EXPECT_EQ(stages[0].hash, stages[1].hash) << what;
    EXPECT_EQ(stages[2].hash, stages[3].hash) << what;
    EXPECT_EQ(stages[0].norms, stages[1].norms) << what;
    EXPECT_EQ(stages[2].norms, stages[3].norms) << what;
    if (micro_batches == 1) {
      EXPECT_EQ(stages[0].hash, stages[2].hash) << what;
      EXPECT_EQ(stages[0].norms, stages[2].norms) << what;
    } else {
      // Compares losses, not parameters: if a gradient is zero except for rounding, AdamW still
      // makes a full step.
      for (std::size_t step = 0; step < stages[0].losses.size(); ++step) {
        EXPECT_NEAR(stages[0].losses[step], stages[2].losses[step], layout.param == 4 ? 1e-4 : 0.05)
            << what;
      }
    }
  }
}

TEST(Oracle, EqualsOneProcessAfterTwentySgdSteps) {
  for (const auto& [net, ranks, micro_batches, stage] :
       combinations(std::vector<std::string>{"mlp", "conv", "tied", "odd32"},
                    std::vector{1, 2, 3, 4}, std::vector{1, 3}, std::vector{0, 3})) {
    Case run = make_case(net, ranks, stage, "fp32", micro_batches);
    run.steps = 20;
    run.options.clip_norm = 0;
    run.options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
    const Result engine = train(run);
    const Result alone = train_alone(run);
    EXPECT_LT(distance(engine, alone), 1e-5) << run.describe();
    for (std::size_t i = 0; i < alone.buffers.size(); ++i) {
      EXPECT_TRUE(at::allclose(engine.buffers[i].to(at::kFloat), alone.buffers[i].to(at::kFloat),
                               1e-4, 1e-5))
          << run.describe();
    }
  }
}

TEST(Oracle, AdamWLossesEqualThoseOfOneProcess) {
  for (const std::string net : {"mlp", "conv", "tied", "odd32"}) {
    for (const int stage : {0, 1, 2, 3}) {
      Case run = make_case(net, 3, stage, "fp32", 3);
      run.steps = 20;
      run.options.optimizer = AdamW{.lr = 1e-2, .weight_decay = 0};
      const Result engine = train(run);
      const Result alone = train_alone(run);
      for (int step = 0; step < run.steps; ++step) {
        EXPECT_NEAR(engine.losses[step], alone.losses[step], 1e-4) << run.describe() << step;
        EXPECT_NEAR(engine.norms[step], alone.norms[step], 1e-3 * alone.norms[step] + 1e-5)
            << run.describe();
      }
    }
  }
}

// Options that only reorder work do not change the bits.
TEST(Oracle, OverlapBucketsPrefetchAndGatherDoNotChangeTheBits) {
  for (const std::string net : {"tied", "odd"}) {
    for (const int stage : {0, 1, 2, 3}) {
      const Case base = make_case(net, 3, stage, "bf16", 3);
      const Result want = train(base);
      const auto same = [&](const char* what, const std::function<void(Case&)>& change) {
        Case run = base;
        change(run);
        const Result got = train(run);
        EXPECT_EQ(got.hash, want.hash) << what << ", " << run.describe();
        EXPECT_EQ(got.sent, got.expected) << what << ", " << run.describe();
      };
      for (const std::int64_t bytes : {1 << 10, 1 << 14, 1 << 30}) {
        same("bucket", [&](Case& run) { run.options.bucket_bytes = bytes; });
      }
      same("overlap reduce", [](Case& run) { run.options.overlap_grad_reduce = false; });
      same("overlap gather", [](Case& run) { run.options.overlap_param_gather = false; });
      same("prefetch", [](Case& run) { run.options.prefetch = false; });
      same("keep", [](Case& run) { run.options.keep_params = true; });
      same("copy", [](Case& run) { run.options.gather = Gather::copy; });
      same("copy, no prefetch", [](Case& run) {
        run.options.gather = Gather::copy;
        run.options.prefetch = false;
      });
      same("copy, keep", [](Case& run) {
        run.options.gather = Gather::copy;
        run.options.keep_params = true;
      });
    }
  }
}

TEST(Oracle, ReducePolicyIsIndependentOfTheStage) {
  for (const ReducePolicy policy : {ReducePolicy::each, ReducePolicy::last}) {
    std::vector<Result> stages;
    for (int stage = 0; stage < 4; ++stage) {
      Case run = make_case("tied", 3, stage, "bf16-fp32grad", 3);
      run.options.reduce = policy;
      stages.push_back(train(run));
      EXPECT_EQ(stages.back().sent, stages.back().expected) << run.describe();
      EXPECT_EQ(stages.back().hash, stages[0].hash) << run.describe();
    }
  }
}

TEST(Oracle, RecomputationKeepsTheBits) {
  for (const int stage : {0, 2, 3}) {
    for (const Gather gather : {Gather::alias, Gather::copy}) {
      Case run = make_case("tied", 2, stage, "fp32", 2);
      run.options.gather = stage == 3 ? gather : Gather::automatic;
      const Result want = train(run);
      for (const auto mode : {nn::Recompute::selective, nn::Recompute::full}) {
        run.recompute = mode;
        const Result got = train(run);
        EXPECT_EQ(got.hash, want.hash)
            << nn::name(mode) << ", " << run.describe() << ", distance " << distance(got, want);
        EXPECT_EQ(got.sent, got.expected) << nn::name(mode) << ", " << run.describe();
      }
    }
  }
}

}  // namespace
}  // namespace tessera::zero::test
