// Hybrid sharding: memory and traffic of a rank with replicas, compared with plans without replicas
// and with counted loops.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/shard.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/places.h"
#include "tessera/planner/run.h"
#include "tessera/planner/state.h"
#include "tests/planner/run_case.h"

namespace tessera::planner {
namespace {

RunConfig run_of(const char* model, int stage, const Axes& axes) {
  RunConfig q = small_run(find_model_shape(model), "bf16", stage, axes);
  q.seq = 64, q.grad_accum = 4;
  return q;
}

Axes mesh(int dp, int replicas, int tp = 1, int pp = 1) {
  Axes axes{{Axis::tp, tp}, {Axis::pp, pp}};
  axes.set_dp(dp);
  axes.set_given(Axis::dp_replicate, replicas);
  return axes;
}

template <typename Check>
void for_all_meshes(const Check& check) {
  for (const int stage : {1, 2, 3}) {
    for (const int dp : {2, 4, 6, 8, 12, 24}) {
      for (int replicas = 1; replicas <= dp; ++replicas) {
        if (dp % replicas != 0) continue;
        for (const auto& [tp, pp] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 3}}) {
          check(stage, dp, replicas, tp, pp);
        }
      }
    }
  }
}

TEST(HybridSharding, StateEqualsThatOfOneReplica) {
  for_all_meshes([](int stage, int dp, int replicas, int tp, int pp) {
    for (const char* layout : {"bf16", "fp32"}) {
      RunConfig q = run_of("gpt2-124m", stage, mesh(dp, replicas, tp, pp));
      q.layout = parse_state_layout(layout);
      RunConfig alone = q;
      alone.axes = mesh(dp / replicas, 1, tp, pp);
      const RunMemory memory = run_memory(q), one = run_memory(alone);
      EXPECT_EQ(memory.params, one.params) << stage << " " << dp << " " << replicas;
      EXPECT_EQ(memory.grads, one.grads) << stage << " " << dp << " " << replicas;
      EXPECT_EQ(memory.optimizer, one.optimizer) << stage << " " << dp << " " << replicas;
      EXPECT_EQ(memory.activations, one.activations) << stage << " " << dp << " " << replicas;
      EXPECT_EQ(memory.temporary, one.temporary) << stage << " " << dp << " " << replicas;
    }
  });
}

TEST(HybridSharding, StateEqualsTheSumOverParameters) {
  for (const int dp : {4, 6, 16}) {
    for (const int replicas : {1, 2}) {
      const RunConfig q = run_of("gpt2-124m", 3, mesh(dp, replicas));
      std::int64_t shard = 0;
      for (const ParamSpec& spec : model_params(q.model, 1, {0, q.model.layers, true, true})) {
        std::int64_t elements = 1;
        for (const std::int64_t length : spec.shape) elements *= length;
        shard += shard_size(elements, dp / replicas);
      }
      const RunMemory memory = run_memory(q);
      EXPECT_EQ(memory.params, shard * q.layout.param);
      EXPECT_EQ(memory.grads, shard * q.layout.grad);
      EXPECT_EQ(memory.optimizer, shard * q.layout.optimizer());
    }
  }
}

// At stage 2 without a pipeline, buffers are only buckets, so the run without replicas gives the
// size of the largest.
TEST(HybridSharding, BucketSlotsIncludeTheSums) {
  for (const int dp : {4, 8, 12}) {
    for (const int replicas : {2, 4}) {
      const int shards = dp / replicas;
      if (shards == 1) continue;
      RunConfig plain = run_of("gpt2-124m", 2, mesh(shards, 1));
      RunConfig q = run_of("gpt2-124m", 2, mesh(dp, replicas));
      const std::int64_t both = run_memory(plain).buffers;
      EXPECT_EQ(run_memory(q).buffers, both + both / shards);
      // Gradients that are reduced in place have no buckets.
      plain.grad_reduce = q.grad_reduce = ReducePolicy::last;
      EXPECT_EQ(run_memory(plain).buffers, 0);
      EXPECT_EQ(run_memory(q).buffers, both / shards);
    }
  }
}

// Counts the sends of rings one by one.
double counted_ring(double bytes, int ranks, int trips) {
  double sent = 0;
  for (int trip = 0; trip < trips; ++trip) {
    for (int step = 0; step + 1 < ranks; ++step) sent += bytes / ranks;
  }
  return sent;
}

TEST(HybridSharding, TrafficEqualsTheCountedRings) {
  for_all_meshes([](int stage, int dp, int replicas, int tp, int pp) {
    if (tp * pp > 1) return;
    for (const ReducePolicy policy : {ReducePolicy::each, ReducePolicy::last}) {
      for (const int micros : {1, 3}) {
        TrafficInput q;
        q.stage = stage;
        q.dp = dp;
        q.replicas = replicas;
        q.micro_batches = micros;
        q.param_bytes = 9e6;
        q.grad_bytes = 7e6;
        q.policy = policy;
        const int shards = dp / replicas;
        double reduce = 0, across = 0, gather = 0;
        for (int i = 0; i < (policy == ReducePolicy::each ? micros : 1); ++i) {
          reduce += counted_ring(q.grad_bytes, shards, 1);
          across += counted_ring(q.grad_bytes / shards, replicas, 2);
        }
        for (int i = 0; i < (stage == 3 ? 2 * micros : 1); ++i) {
          gather += counted_ring(q.param_bytes, shards, 1);
        }
        const DataParallelTraffic sent = data_parallel_traffic(q);
        EXPECT_NEAR(sent.reduce, reduce, 1e-6);
        EXPECT_NEAR(sent.gather, gather, 1e-6);
        EXPECT_NEAR(sent.replicate, across, 1e-6);
        EXPECT_DOUBLE_EQ(sent.total(), sent.along_shards() + sent.replicate);
      }
    }
  });
}

TEST(HybridSharding, TrafficInsideAReplicaEqualsThatOfOneReplicaAlone) {
  for_all_meshes([](int stage, int dp, int replicas, int tp, int pp) {
    const RunConfig q = run_of("gpt2-124m", stage, mesh(dp, replicas, tp, pp));
    RunConfig alone = q;
    alone.axes = mesh(dp / replicas, 1, tp, pp);
    const RunPlan plan = plan_run(q), one = plan_run(alone);
    EXPECT_EQ(plan.sent[Axis::dp_shard], one.sent[Axis::dp_shard]);
    EXPECT_EQ(plan.sent[Axis::tp], one.sent[Axis::tp]);
    EXPECT_EQ(plan.sent[Axis::pp], one.sent[Axis::pp]);
    const std::int64_t reductions = q.policy() == ReducePolicy::each ? q.grad_accum : 1;
    // A rank's shard of the gradients as sent; the optimizer state has the same number of elements.
    const std::int64_t shard = one.optimizer / q.layout.optimizer() * q.travel();
    EXPECT_EQ(plan.sent[Axis::dp_replicate], std::llround(2.0 * (replicas - 1) / replicas *
                                                          static_cast<double>(shard) * reductions));
  });
}

TEST(HybridSharding, MuonExchangesMatricesInsideAReplica) {
  for (const int stage : {1, 2, 3}) {
    RunConfig q = run_of("gpt2-124m", stage, mesh(8, 2));
    q.layout.matrix_moments = 4;
    RunConfig alone = q;
    alone.axes = mesh(4, 1);
    EXPECT_EQ(plan_run(q).sent[Axis::dp_shard], plan_run(alone).sent[Axis::dp_shard]);
    EXPECT_EQ(run_memory(q).optimizer, run_memory(alone).optimizer);
  }
}

TEST(HybridSharding, MoreReplicasHoldMoreAndSendLessInside) {
  for (const int stage : {1, 2, 3}) {
    RunPlan before = plan_run(run_of("gpt2-124m", stage, mesh(16, 1)));
    for (const int replicas : {2, 4, 8, 16}) {
      const RunPlan plan = plan_run(run_of("gpt2-124m", stage, mesh(16, replicas)));
      EXPECT_GT(plan.state(), before.state());
      EXPECT_LT(plan.sent[Axis::dp_shard], before.sent[Axis::dp_shard]);
      EXPECT_GT(plan.sent[Axis::dp_replicate], before.sent[Axis::dp_replicate]);
      before = plan;
    }
  }
}

TEST(HybridSharding, ReplicasAreOutsideShardsByDefault) {
  Topology topology;
  topology.per_node = 8;
  const Places places = places_on(topology, in_order(kUsualOrder, mesh(64, 8)));
  EXPECT_EQ(places.along[Axis::dp_shard].ranks, 8);
  EXPECT_EQ(places.along[Axis::dp_shard].nodes(), 1);
  EXPECT_EQ(places.along[Axis::dp_replicate].ranks, 8);
  EXPECT_EQ(places.along[Axis::dp_replicate].in_node, 1);
  EXPECT_EQ(places.along[Axis::dp_replicate].crossing, 8);
}

// 64 ranks, 8 per node. If replicas are nodes, gathers stay inside the node. Larger replicas gather
// between nodes, and also send the sums of all their ranks.
TEST(HybridSharding, NodeSendsLessIfItIsAReplica) {
  Topology topology;
  topology.per_node = 8;
  for (const int stage : {1, 2, 3}) {
    for (const int micros : {1, 4}) {
      const auto out_of_node = [&](int replicas) {
        TrafficInput q;
        q.stage = stage;
        q.dp = 64;
        q.replicas = replicas;
        q.micro_batches = micros;
        q.param_bytes = q.grad_bytes = 1e9;
        q.policy = default_reduce_policy(stage);
        const DataParallelTraffic traffic = data_parallel_traffic(q);
        PerAxis<double> sent;
        sent[Axis::dp_shard] = traffic.along_shards();
        sent[Axis::dp_replicate] = traffic.replicate;
        return dp_bytes_out_of_node(places_on(topology, in_order(kUsualOrder, mesh(64, replicas))),
                                    sent);
      };
      const int reductions = stage == 1 ? 1 : micros;
      EXPECT_NEAR(out_of_node(8), 2 * 7.0 / 8 * reductions * 1e9, 1);
      // Stage 2 gathers once per step, so the number of times that gradients cross nodes decides:
      // twice instead of once.
      if (stage == 2 && micros > 1) {
        EXPECT_GT(out_of_node(8), out_of_node(1));
      } else {
        EXPECT_LT(out_of_node(8), out_of_node(1));
      }
      EXPECT_GT(out_of_node(4), out_of_node(1));
    }
  }
}

TEST(HybridSharding, TriesReplicasThatFillNodes) {
  RunConfig q = RunConfig::for_plan();
  q.per_node = 8;
  q.axes = mesh(64, 1);
  EXPECT_EQ(replica_counts(q), (std::vector<int>{8, 4, 2}));
  q.axes = mesh(64, 1, 2);
  EXPECT_EQ(replica_counts(q), (std::vector<int>{16, 8, 4, 2}));
  q.axes = mesh(24, 1);
  EXPECT_EQ(replica_counts(q), (std::vector<int>{3}));
  for (const Axes& none : {mesh(8, 1), mesh(64, 1, 8), mesh(64, 1, 16), mesh(12, 1)}) {
    q.axes = none;
    EXPECT_TRUE(replica_counts(q).empty()) << none.text();
  }
}

TEST(HybridSharding, RefusesStageZero) {
  EXPECT_NO_THROW(check_replicas_at(0, mesh(8, 1)));
  EXPECT_NO_THROW(check_replicas_at(1, mesh(8, 2)));
  try {
    check_replicas_at(0, mesh(8, 2));
    FAIL() << "stage 0 with replicas was accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "--dp-replicate 2: needs --zero 1, 2 or 3, which shard state; at stage 0 every "
                 "rank holds all of it");
  }
}

}  // namespace
}  // namespace tessera::planner
