// Frozen parameters: they are stored and stay unchanged, at no other cost.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/shard.h"
#include "tessera/memory/allocator.h"
#include "tests/text.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

Case frozen_case(const std::string& net, const std::vector<std::string>& frozen, int ranks,
                 int stage) {
  Case run;
  run.net = net;
  run.frozen = frozen;
  run.ranks = ranks;
  run.options.stage = stage;
  run.options.clip_norm = 0.5;
  run.options.bucket_bytes = 300;
  run.options.optimizer = AdamW{.lr = 1e-2};
  return run;
}

struct Pattern {
  std::string net;
  std::vector<std::string> frozen;
  // Units that no gradient reaches: stage 3 gathers them in forward only.
  std::vector<std::string> unreached = {};
};
// First layers, last layers, whole units, parts of each, all but one matrix.
const std::vector<Pattern>& patterns() {
  static const std::vector<Pattern> all = {
      {"tied", {"embed", "norm"}},
      {"tied", {"block1"}},
      {"tied", {"block0", "block1"}},
      {"tied",
       {"embed", "block0", "block1", "block2.norm", "block2.up", "norm"},
       {"block0", "block1"}},
      {"tied", {"block0.up", "block1.down", "block2.norm"}},
      {"mlp", {"layers.0"}, {"layers.0"}},
      {"mlp", {"layers.4"}},
      {"mlp", {"layers.0", "layers.2.bias"}, {"layers.0"}},
      {"conv", {"conv1", "norm"}},
      {"odd", {"first", "half"}}};
  return all;
}

std::string words(const Case& run) {
  return str(run.describe(), ", frozen ", join(run.frozen, ","));
}

// Bytes that a rank does not send in backward for units that no gradient reaches.
std::uint64_t spared(const Pattern& pattern, const Case& run) {
  if (run.options.stage < 3 || run.recompute != nn::Recompute::none) return 0;
  std::int64_t elements = 0;
  const auto net = make_net(pattern.net);
  for (const auto& item : net->named_parameters()) {
    for (const std::string& unit : pattern.unreached) {
      if (item.key().starts_with(unit + ".")) {
        elements += shard_size(item.value().numel(), run.ranks);
      }
    }
  }
  return static_cast<std::uint64_t>(elements * (run.ranks - 1) * run.options.layout.param *
                                    run.options.micro_batches * run.steps);
}

TEST(Frozen, StagesAreBitwiseEqualAndSendTheBytesOfTheFormula) {
  int turn = 0;
  const std::vector<std::string> layouts = {"fp32", "bf16", "bf16-nomaster", "bf16-fp32grad"};
  for (const Pattern& pattern : patterns()) {
    for (const int ranks : {2, 3}) {
      ++turn;
      std::vector<Result> stages;
      for (int stage = 0; stage < 4; ++stage) {
        Case run = frozen_case(pattern.net, pattern.frozen, ranks, stage);
        run.options.layout = parse_state_layout(layouts[static_cast<std::size_t>(turn) % 4]);
        run.options.micro_batches = turn % 2 == 0 ? 1 : 3;
        run.options.reduce = ReducePolicy::each;  // so that all stages add in the same order
        if (pattern.net == "tied" && turn % 3 == 0) run.recompute = nn::Recompute::full;
        if (turn % 5 == 0) run.options.gather = Gather::copy;
        stages.push_back(train(run));
        EXPECT_EQ(stages.back().sent, stages.back().expected - spared(pattern, run)) << words(run);
        EXPECT_EQ(stages.back().hash, stages[0].hash) << words(run);
        EXPECT_EQ(stages.back().norms, stages[0].norms) << words(run);
      }
    }
  }
}

TEST(Frozen, TrainsOtherParametersLikeOneProcess) {
  for (const Pattern& pattern : patterns()) {
    if (pattern.net == "odd") continue;
    for (const int stage : {0, 2, 3}) {
      Case run = frozen_case(pattern.net, pattern.frozen, 2, stage);
      run.steps = 6;
      run.options.clip_norm = 0;
      run.options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
      const Result engine = train(run), alone = train_alone(run);
      EXPECT_LT(distance(engine, alone), 1e-5) << words(run);
      auto start = make_net(pattern.net);
      start->initialize(7);
      freeze(*start, run);
      std::size_t i = 0;
      for (const auto& item : start->named_parameters()) {
        if (item.value().requires_grad()) {
          ++i;
          continue;
        }
        EXPECT_TRUE(engine.params[i].second.equal(item.value().detach())) << item.key();
        ++i;
      }
    }
  }
}

// Bytes by category equal the planner's formula for the padded parameters.
TEST(Frozen, UsesTheMemoryThatThePlannerPredicts) {
  memory::install();
  for (const Pattern& pattern : patterns()) {
    if (pattern.net == "odd" || pattern.net == "conv") continue;  // several types
    for (const char* layout : {"fp32", "bf16", "bf16-fp32grad", "bf16-nomaster"}) {
      for (int stage = 0; stage < 4; ++stage) {
        for (const auto policy : {ReducePolicy::each, ReducePolicy::last}) {
          constexpr int kRanks = 2;
          over(kRanks, [&](const comm::Group& group) {
            Case run = frozen_case(pattern.net, pattern.frozen, kRanks, stage);
            auto net = make_net(run.net);
            net->initialize(7);
            freeze(*net, run);
            double trained = 0, frozen = 0;
            for (const at::Tensor& p : net->parameters()) {
              (p.requires_grad() ? trained : frozen) +=
                  static_cast<double>(shard_size(p.numel(), kRanks) * kRanks);
            }
            run.options.layout = parse_state_layout(layout);
            run.options.reduce = policy;
            run.options.gather = Gather::copy;
            run.options.ledger = std::make_shared<memory::Ledger>();
            Engine engine(net, group, run.options);
            const auto counts = run.options.ledger->counts();
            const StateLayout& how = run.options.layout;
            const auto state = planner::state_bytes(how, stage, trained, kRanks, policy);
            const auto kept = planner::frozen_bytes(how, stage, frozen, kRanks);
            // Each buffer is a multiple of 64 bytes.
            const auto near = [&](MemoryCategory category, double want) {
              const auto got = static_cast<double>(counts[category].now);
              EXPECT_GE(got, want) << name(category) << " " << words(run) << layout;
              EXPECT_LE(got, want + 4 * 64) << name(category) << " " << words(run) << layout;
            };
            near(MemoryCategory::params, state.params + kept.params);
            near(MemoryCategory::grads, state.grads);
            near(MemoryCategory::optimizer, state.optimizer);
          });
        }
      }
    }
  }
}

TEST(Frozen, StateHasOnlyTheirValues) {
  for (int stage = 0; stage < 4; ++stage) {
    over(2, [&](const comm::Group& group) {
      const Case run = frozen_case("tied", {"block1", "embed"}, 2, stage);
      auto net = make_net("tied");
      net->initialize(7);
      freeze(*net, run);
      Engine engine(net, group, run.options);
      std::vector<std::string> names;
      for (const auto& item : net->named_parameters()) {
        if (!item.value().requires_grad()) names.push_back(item.key());
      }
      EXPECT_EQ(engine.frozen_params(), names);
      for (const StateShard& shard : engine.state(StateScope::held)) {
        const bool frozen = std::find(names.begin(), names.end(), shard.param) != names.end();
        EXPECT_EQ(shard.frozen, frozen) << shard.param;
        EXPECT_TRUE(!frozen || shard.state == "param") << shard.param;
      }
      for (const auto& [name, updates] : engine.progress().updates) {
        EXPECT_EQ(std::find(names.begin(), names.end(), name), names.end()) << name;
      }
    });
  }
}

TEST(Frozen, RejectsAModelWithNothingToTrain) {
  torch::nn::Linear net(3, 2);
  for (const at::Tensor& p : net->parameters()) p.set_requires_grad(false);
  DataParallel train(net, comm::Group());
  const at::Tensor y = train(at::ones({1, 3}));  // forward works
  EXPECT_FALSE(y.requires_grad());
  const std::string error = error_of([&] { train.step(); });
  EXPECT_TRUE(contains(error, "all parameters are frozen")) << error;
}

}  // namespace
}  // namespace tessera::zero::test
