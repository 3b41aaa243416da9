// One replica represents all if they are equal; invariants if they are not.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tessera/core/text.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {
namespace {

Scenario scenario(const std::string& name, int p, int k, int dp, int tp) {
  Scenario s;
  s.schedule = *find_named<ScheduleChoice>(name);
  s.micros = k;
  planner::StepChunk chunk;
  chunk.forward = 1e-3;
  chunk.backward_input = 1.2e-3;
  chunk.backward_weight = 0.8e-3;
  chunk.forward_comm[Axis::tp] = tp > 1 ? 2e-4 : 0;
  chunk.backward_comm[Axis::tp] = tp > 1 ? 3e-4 : 0;
  chunk.grad_bytes = 1.2e8;
  chunk.param_bytes = 0.6e8;
  chunk.units = 3;
  s.chunks = planner::equal_chunks(p, schedule::make(name, p, k, 2).chunks, chunk);
  // Uneven stages: the first holds more.
  for (auto& each : s.chunks[0]) each.forward *= 1.3;
  s.topology.inside = {2e11, 2e-6};
  s.topology.nic = {2.5e10, 6e-6};
  s.topology.algorithm = planner::Algorithm::ring;
  s.interference = 0.3;
  s.axes.set_dp(dp);
  s.axes.set(Axis::tp, tp);
  s.hop_bytes = 1.7e7;
  s.optimizer = 1e-4;
  return s;
}

void expect_equal(const RankTime& a, const RankTime& b) {
  EXPECT_NEAR(a.compute, b.compute, 1e-9);
  EXPECT_NEAR(a.comm[Axis::tp], b.comm[Axis::tp], 1e-9);
  EXPECT_NEAR(a.comm[Axis::pp], b.comm[Axis::pp], 1e-9);
  EXPECT_NEAR(a.comm[Axis::dp_shard], b.comm[Axis::dp_shard], 1e-9);
  EXPECT_NEAR(a.comm[Axis::dp_replicate], b.comm[Axis::dp_replicate], 1e-9);
  EXPECT_NEAR(a.bubble, b.bubble, 1e-9);
  EXPECT_NEAR(a.sent[Axis::dp_shard], b.sent[Axis::dp_shard], 1);
  EXPECT_NEAR(a.sent[Axis::pp], b.sent[Axis::pp], 1);
}

// Simulates one data-parallel rank of each stage, and all of them.
void expect_one_is_the_full_run(const Scenario& s, const std::string& what) {
  SCOPED_TRACE(what);
  const Result one = simulate(s), full = simulate(s, {.full = true});
  ASSERT_EQ(one.replicas, 1);
  ASSERT_EQ(full.replicas, s.dp());
  ASSERT_NEAR(one.step, full.step, 1e-9);
  for (int r = 0; r < s.axes.pp(); ++r) {
    for (int d = 0; d < s.dp(); ++d) expect_equal(one.at(r), full.at(r, d));
  }
}

TEST(Symmetry, OneReplicaEqualsTheFullRun) {
  int compared = 0;
  for (const std::string& name : schedule::names()) {
    for (const int p : {1, 2, 3, 4, 6}) {
      for (const int dp : {1, 2, 3, 4, 8, 11}) {
        for (const int tp : {1, 2, 8}) {
          for (int variant = 0; variant < 16; ++variant) {
            Scenario s = scenario(name, p, p + 3, dp, tp);
            s.zero = variant % 4;
            s.policy = variant % 3 == 0 ? ReducePolicy::each : ReducePolicy::last;
            s.overlap_grad_reduce = variant < 12;
            s.overlap_param_gather = variant % 5 != 0;
            s.bucket_bytes = variant % 2 == 0 ? 25e6 : 1e9;
            if (!s.symmetric()) continue;
            expect_one_is_the_full_run(s, str(name, p, " ", dp, " ", variant));
            ++compared;
          }
        }
      }
    }
  }
  EXPECT_GT(compared, 3000);
}

TEST(Symmetry, OneReplicaEqualsTheFullRunWithHybridSharding) {
  int compared = 0;
  for (const std::string& name : schedule::names()) {
    for (const int p : {1, 2, 4}) {
      for (const int dp : {4, 8, 16}) {
        for (int variant = 0; variant < 24; ++variant) {
          Scenario s = scenario(name, p, p + 3, dp, variant % 2 + 1);
          s.axes.set_given(Axis::dp_replicate, dp / (1 << variant % 3));
          s.replica_interference = 0.1;
          s.zero = 1 + variant % 3;
          s.policy = variant % 4 == 0 ? ReducePolicy::each : ReducePolicy::last;
          s.overlap_grad_reduce = variant < 18;
          s.overlap_param_gather = variant % 5 != 0;
          if (!s.symmetric()) continue;
          expect_one_is_the_full_run(s, str(name, p, " ", dp, " ", variant));
          ++compared;
        }
      }
    }
  }
  EXPECT_GT(compared, 500);
}

// Replicas that nodes of eight cannot hold evenly: some hops cross nodes, some do not.
TEST(Symmetry, UnevenPlacementSimulatesAllReplicas) {
  const Scenario s = scenario("1f1b", 4, 8, 3, 1);
  EXPECT_FALSE(s.symmetric());
  EXPECT_EQ(simulate(s).replicas, 3);
}

TEST(Irregular, TheSameSeedGivesTheSameRun) {
  Scenario s = scenario("interleaved", 4, 8, 4, 2);
  s.jitter = 0.1;
  s.zero = 3;
  const Result a = simulate(s), b = simulate(s);
  EXPECT_EQ(a.step, b.step);
  for (std::size_t i = 0; i < a.ranks.size(); ++i) {
    EXPECT_EQ(a.ranks[i].compute, b.ranks[i].compute);
    EXPECT_EQ(a.ranks[i].comm[Axis::dp_shard], b.ranks[i].comm[Axis::dp_shard]);
    EXPECT_NEAR(a.ranks[i].step(), a.step, 1e-9);
  }
  s.seed = 1;
  EXPECT_NE(simulate(s).step, a.step);
}

// [Note: replica by replica] compared with all events in the order of time, as traces need them.
TEST(Irregular, ReplicaByReplicaEqualsTheOrderOfTime) {
  for (const std::string& name : schedule::names()) {
    for (int variant = 0; variant < 24; ++variant) {
      Scenario s = scenario(name, 4, 9, 5, variant % 3 == 0 ? 2 : 1);
      s.jitter = 0.2;
      s.zero = variant % 4;
      s.policy = variant % 5 == 0 ? ReducePolicy::each : ReducePolicy::last;
      s.overlap_grad_reduce = variant < 12;
      s.overlap_param_gather = variant % 2 == 0;
      s.tied_bytes = 1e6;
      const Result apart = simulate(s), together = simulate(s, {.traced = 1});
      ASSERT_EQ(apart.replicas, 5);
      ASSERT_NEAR(apart.step, together.step, 1e-12) << name << " " << variant;
      ASSERT_EQ(apart.events, together.events);
      for (std::size_t i = 0; i < apart.ranks.size(); ++i) {
        expect_equal(apart.ranks[i], together.ranks[i]);
      }
    }
  }
}

TEST(Irregular, ReplicaByReplicaEqualsTheOrderOfTimeWithHybridSharding) {
  for (const std::string& name : schedule::names()) {
    for (int variant = 0; variant < 24; ++variant) {
      Scenario s = scenario(name, 4, 9, 6, variant % 3 == 0 ? 2 : 1);
      s.axes.set_given(Axis::dp_replicate, variant % 2 == 0 ? 2 : 3);
      s.topology.per_node = variant < 12 ? 2 : 8;
      s.replica_interference = 0.1;
      s.jitter = 0.2;
      s.zero = 1 + variant % 3;
      s.policy = variant % 5 == 0 ? ReducePolicy::each : ReducePolicy::last;
      s.overlap_grad_reduce = variant % 4 != 0;
      s.overlap_param_gather = variant % 7 != 0;
      const Result apart = simulate(s), together = simulate(s, {.traced = 1});
      ASSERT_EQ(apart.replicas, 6);
      ASSERT_NEAR(apart.step, together.step, 1e-12) << name << " " << variant;
      for (std::size_t i = 0; i < apart.ranks.size(); ++i) {
        expect_equal(apart.ranks[i], together.ranks[i]);
        EXPECT_NEAR(apart.ranks[i].step(), apart.step, 1e-9) << name << " " << variant;
        EXPECT_GT(apart.ranks[i].sent[Axis::dp_replicate], 0);
      }
    }
  }
}

// A slow rank delays the gathers of its own replica, and other replicas only in reductions.
TEST(Irregular, StragglerDelaysOnlyGathersOfItsReplica) {
  Scenario s = scenario("1f1b", 1, 4, 8, 1);
  s.zero = 3;
  s.interference = 0;
  s.topology.per_node = 4;  // one replica per node
  s.stragglers = {{0, 2}};
  s.axes.set_given(Axis::dp_replicate, 2);
  const Result r = simulate(s);
  EXPECT_GT(r.at(0, 1).comm[Axis::dp_shard], 2 * r.at(0, 4).comm[Axis::dp_shard]);
  EXPECT_GT(r.at(0, 4).comm[Axis::dp_replicate], r.at(0, 1).comm[Axis::dp_replicate]);
  EXPECT_EQ(r.at(0, 4).comm[Axis::dp_shard], r.at(0, 7).comm[Axis::dp_shard]);
}

// Jitter preserves the mean of the work, but waiting for the slowest makes steps longer.
TEST(Irregular, JitterCostsTime) {
  Scenario s = scenario("1f1b", 4, 16, 8, 1);
  const double calm = simulate(s).step;
  s.jitter = 0.1;
  const Result r = simulate(s);
  EXPECT_GT(r.step, calm);
  EXPECT_NEAR(r.mean.compute, simulate(scenario("1f1b", 4, 16, 8, 1)).mean.compute,
              r.mean.compute * 0.02);
}

// A rank without tp neighbors has no tp wait, not even a rounding residue.
TEST(Irregular, RankWithoutTpNeighborsHasNoTpWait) {
  for (const int stages : {1, 4}) {
    Scenario s = scenario("1f1b", stages, 7, 16, 1);
    s.jitter = 0.1;
    for (const RankTime& rank : simulate(s).ranks) EXPECT_EQ(rank.comm[Axis::tp], 0);
  }
}

// A rank that is f times slower makes the step longer, but at most f times as long.
TEST(Irregular, StragglerCostsAtMostItsFactor) {
  for (const std::string& name : schedule::names()) {
    for (const double factor : {1.0, 1.1, 1.5, 3.0}) {
      for (const int rank : {0, 3, 7}) {
        Scenario s = scenario(name, 4, 8, 2, 1);
        const double calm = simulate(s, {.full = true}).step;
        s.stragglers = {{rank, factor}};
        const double slow = simulate(s).step;
        EXPECT_GE(slow, calm * (1 - 1e-9)) << name << factor;
        EXPECT_LE(slow, calm * factor * (1 + 1e-9)) << name << factor;
      }
    }
  }
}

// The tp neighbors of a straggler wait for it, which counts as tensor-parallel time.
TEST(Irregular, TpNeighborsWaitForTheSlowest) {
  Scenario s = scenario("1f1b", 1, 4, 1, 4);
  const Result calm = simulate(s);
  s.stragglers = {{2, 2.0}};
  const Result slow = simulate(s);
  const double work = calm.mean.compute;
  EXPECT_NEAR(slow.step, calm.step + work, 1e-9);
  EXPECT_NEAR(slow.mean.compute, work * 1.25, 1e-9);
  EXPECT_NEAR(slow.mean.comm[Axis::tp], calm.mean.comm[Axis::tp] + 0.75 * work, 1e-9);
}

TEST(Spans, CoverTheComputation) {
  Scenario s = scenario("1f1b", 2, 4, 3, 1);
  s.zero = 3;
  s.interference = 0;  // spans show it as computation, but it counts as waiting
  const Result r = simulate(s, {.full = true, .traced = 4});
  std::vector<double> computed(r.ranks.size(), 0);
  for (const Span& span : r.spans) {
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, r.step + 1e-12);
    if (span.lane == Span::computing) {
      computed[static_cast<std::size_t>(span.worker)] += span.end - span.begin;
    }
  }
  // Replicas 0 and 1 of both pipeline ranks; not replica 2.
  for (const int w : {0, 1, 3, 4}) {
    const RankTime& rank = r.ranks[static_cast<std::size_t>(w)];
    EXPECT_NEAR(computed[static_cast<std::size_t>(w)],
                rank.compute + rank.comm[Axis::tp] + rank.optimizer, 1e-9);
  }
  EXPECT_EQ(computed[2], 0);
  EXPECT_EQ(computed[5], 0);
}

}  // namespace
}  // namespace tessera::simulator
