// Hybrid sharding: state is sharded inside each replica, and gradients are summed over all ranks.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/memory/ledger.h"
#include "tests/combinations.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

Case hybrid_case(const std::string& net, int ranks, int replicas, int stage,
                 const std::string& layout = "fp32", int micro_batches = 1) {
  Case run;
  run.net = net;
  run.ranks = ranks;
  run.replicas = replicas;
  run.options.stage = stage;
  run.options.layout = parse_state_layout(layout);
  run.options.micro_batches = micro_batches;
  run.options.bucket_bytes = 300;
  run.options.optimizer = AdamW{.lr = 1e-2};
  return run;
}

// Ranks that share memory sum gradients in the order of all ranks, for any sharding of state.
TEST(Hybrid, EqualsPlainShardingBitByBitAndSendsTheBytesOfTheFormula) {
  for (const auto& [net, mesh, layout, micro_batches, stage] : combinations(
           std::vector<std::string>{"mlp", "conv", "tied", "odd"},
           std::vector{std::pair(2, 2), std::pair(4, 2), std::pair(6, 3)},
           std::vector{"fp32", "bf16", "bf16-fp32grad"}, std::vector{1, 3}, std::vector{1, 2, 3})) {
    const Case plain = hybrid_case(net, mesh.first, 1, stage, layout, micro_batches);
    const Case hybrid = hybrid_case(net, mesh.first, mesh.second, stage, layout, micro_batches);
    const Result want = train(plain), got = train(hybrid);
    EXPECT_EQ(got.hash, want.hash) << hybrid.describe();
    EXPECT_EQ(got.losses, want.losses) << hybrid.describe();
    EXPECT_EQ(got.sent, got.expected) << hybrid.describe();
    EXPECT_EQ(got.sent_across, got.expected_across) << hybrid.describe();
    EXPECT_EQ(want.sent_across, 0u) << plain.describe();
    for (std::size_t step = 0; step < want.norms.size(); ++step) {
      EXPECT_NEAR(got.norms[step], want.norms[step], 1e-12 * want.norms[step]) << hybrid.describe();
    }
  }
}

// Every element is counted once in the norm, so clipping equals that of one process.
TEST(Hybrid, ClipsAndCompressesLikeOneProcess) {
  for (const std::string net : {"mlp", "tied", "odd32"}) {
    for (const int stage : {1, 3}) {
      for (const ReducePolicy reduce : {ReducePolicy::last, ReducePolicy::each}) {
        Case run = hybrid_case(net, 4, 2, stage, "fp32", 2);
        run.steps = 10;
        run.options.clip_norm = 0.3;
        run.options.reduce = reduce;
        run.options.optimizer = SGD{.lr = 0.05, .momentum = 0.9};
        const Result engine = train(run), alone = train_alone(run);
        EXPECT_LT(distance(engine, alone), 2e-5) << run.describe();
        run.options.grad_compression = GradCompression::bf16;
        EXPECT_LT(distance(train(run), alone), 0.05) << run.describe();
      }
    }
  }
}

// A rank of a replica holds the same as a rank of a job of the replica's size.
TEST(Hybrid, HoldsTheStateOfOneReplica) {
  for (int stage = 1; stage < 4; ++stage) {
    for (const std::string layout : {"fp32", "bf16"}) {
      const auto held = [&](int ranks, int replicas) {
        std::array<std::int64_t, 3> bytes{};
        over(ranks, [&](const comm::Group& group) {
          const Case run = hybrid_case("mlp", ranks, replicas, stage, layout);
          auto net = make_net(run.net);
          net->initialize(7);
          Options options = run.options;
          options.ledger = std::make_shared<memory::Ledger>();
          const comm::Mesh mesh(
              group, {{Axis::dp_shard, ranks / replicas}, {Axis::dp_replicate, replicas}});
          const Engine engine(net, mesh, options);
          if (group.rank() != 0) return;
          std::size_t i = 0;
          for (const MemoryCategory category :
               {MemoryCategory::params, MemoryCategory::grads, MemoryCategory::optimizer}) {
            bytes[i++] = options.ledger->counts()[category].now;
          }
        });
        return bytes;
      };
      EXPECT_EQ(held(4, 2), held(2, 1)) << stage << " " << layout;
      EXPECT_EQ(held(6, 2), held(3, 1)) << stage << " " << layout;
    }
  }
}

TEST(Hybrid, RejectsStage0AndMeshesThatCutTheModel) {
  const auto error = [](int ranks, const Axes& axes, int stage) {
    std::string text;
    std::mutex mutex;
    over(ranks, [&](const comm::Group& group) {
      auto net = make_net("mlp");
      Options options;
      options.stage = stage;
      try {
        const Engine engine(net, comm::Mesh(group, axes), options);
      } catch (const UsageError& problem) {
        const std::lock_guard lock(mutex);
        text = problem.what();
      }
    });
    return text;
  };
  const std::string stage = error(2, "dp=2,dp_replicate=2", 0), mesh = error(2, "tp=2", 1);
  EXPECT_NE(stage.find("dp_replicate 2: requires stage 1, 2 or 3"), std::string::npos) << stage;
  EXPECT_NE(mesh.find("Use ParallelModel"), std::string::npos) << mesh;
}

// The first replica saves; any mesh can load it.
TEST(Hybrid, OwnsEachElementOfTheStateOnce) {
  for (int stage = 1; stage < 4; ++stage) {
    std::map<std::string, std::int64_t> elements;
    std::mutex mutex;
    over(4, [&](const comm::Group& group) {
      auto net = make_net("odd");
      net->initialize(3);
      Options options;
      options.stage = stage;
      Engine engine(net, comm::Mesh(group, "dp=4,dp_replicate=2"), options);
      const std::lock_guard lock(mutex);
      for (const StateShard& shard : engine.state(StateScope::owned)) {
        if (shard.state == "param") elements[shard.param] += shard.values.numel();
      }
    });
    for (const auto& entry : make_net("odd")->named_parameters()) {
      EXPECT_EQ(elements[entry.key()], entry.value().numel()) << entry.key() << ", " << stage;
    }
  }
}

}  // namespace
}  // namespace tessera::zero::test
