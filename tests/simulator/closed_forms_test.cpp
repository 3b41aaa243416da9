// Closed forms must equal the simulation.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/state.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {
namespace {

constexpr int kMaxRanks = 16, kMaxMicros = 64;

using Chunk = planner::StepChunk;

// Nodes of one device: all links are equal, and none is shared.
planner::Topology plain_topology(double bandwidth = 1e9, double latency = 0, int per_node = 8) {
  planner::Topology t;
  t.inside = t.nic = {bandwidth, latency};
  t.per_node = t.nics = per_node;
  t.algorithm = planner::Algorithm::ring;
  return t;
}

Scenario pipeline(const schedule::Schedule& schedule, const Chunk& chunk) {
  Scenario s;
  s.schedule = *find_named<ScheduleChoice>(schedule.name);
  s.micros = schedule.micros;
  s.chunks = planner::equal_chunks(schedule.ranks, schedule.chunks, chunk);
  s.topology = plain_topology();
  return s;
}

Chunk times(double forward, double backward) {
  Chunk chunk;
  chunk.forward = forward;
  chunk.backward_input = chunk.backward_weight = backward / 2;
  return chunk;
}

// The parts of every rank's time add up to the step.
void expect_sums(const Result& result) {
  for (const RankTime& rank : result.ranks) {
    EXPECT_NEAR(rank.step(), result.step, 1e-9 * std::max(1.0, result.step));
  }
}

TEST(ClosedForms, MatchGpipeAnd1F1B) {
  for (int p = 1; p <= kMaxRanks; ++p) {
    for (int k = 1; k <= kMaxMicros; ++k) {
      for (const char* name : {"gpipe", "1f1b"}) {
        const Result r = simulate(pipeline(schedule::make(name, p, k), times(1.2, 2.2)));
        EXPECT_NEAR(r.step, planner::pipeline_time(p, k, 1.2, 2.2), 1e-9) << name << p << " " << k;
        EXPECT_NEAR(r.bubble, planner::bubble_fraction(p, k), 1e-9) << name << p << " " << k;
        EXPECT_NEAR(r.utilization + r.bubble, 1, 1e-12);
        expect_sums(r);
      }
    }
  }
}

TEST(ClosedForms, MatchInterleavedSchedules) {
  for (int p = 1; p <= kMaxRanks; ++p) {
    for (int k = p; k <= kMaxMicros; k += p) {
      for (int v = 2; v <= 4; ++v) {
        const Result r =
            simulate(pipeline(schedule::interleaved(p, k, v), times(1.2 / v, 2.2 / v)));
        EXPECT_NEAR(r.bubble, planner::bubble_fraction(p, k, v), 1e-9) << p << " " << k << " " << v;
      }
    }
  }
}

// The simulation equals schedule::time(), for every schedule and for sizes without a closed form.
TEST(ClosedForms, MatchScheduleTime) {
  for (const std::string& name : schedule::names()) {
    for (int p = 1; p <= kMaxRanks; p += 3) {
      for (int k = p; k <= kMaxMicros; k += 9) {
        const schedule::Schedule schedule = schedule::make(name, p, k, 3);
        Chunk chunk;
        chunk.forward = 1.0;
        chunk.backward_input = 1.3;
        chunk.backward_weight = 0.6;
        const schedule::Timing want = schedule::time(schedule, {1.0, 1.3, 0.6});
        const Result got = simulate(pipeline(schedule, chunk));
        EXPECT_NEAR(got.step, want.step, 1e-9) << name << p << " " << k;
        EXPECT_NEAR(got.bubble, want.bubble, 1e-9) << name << p << " " << k;
      }
    }
  }
}

// Forward 120 ms, backward 220 ms, two stages, eight micro-batches, hops of 5 ms.
TEST(ClosedForms, MatchAnExampleComputedByHand) {
  Scenario s = pipeline(schedule::one_f_one_b(2, 8), times(0.120, 0.220));
  EXPECT_NEAR(simulate(s).step, 3.060, 1e-12);
  s.hop_latency = 0.005;
  const Result r = simulate(s);
  // Two micro-batches are in flight at a time: each pair waits for a hop forth and one back.
  EXPECT_NEAR(r.step, 3.060 + 8 * 0.005, 1e-12);
  EXPECT_GT(r.mean.comm[Axis::pp], 0);
  expect_sums(r);
  // Bytes instead of latency give the same.
  s.hop_latency = 0;
  s.hop_bytes = 5e6;
  EXPECT_NEAR(simulate(s).step, 3.100, 1e-12);
}

// GPipe with hops: each boundary costs a hop forth and one back.
TEST(ClosedForms, MatchGpipeWithHops) {
  for (int p = 1; p <= 8; ++p) {
    for (int k = 1; k <= 16; ++k) {
      Scenario s = pipeline(schedule::gpipe(p, k), times(1, 2));
      s.hop_latency = 0.125;
      EXPECT_NEAR(simulate(s).step, 3.0 * (k + p - 1) + 2 * (p - 1) * 0.125, 1e-9);
    }
  }
}

// Without overlap a ring all-reduce runs after all computation, with its full time.
TEST(ClosedForms, MatchRingWithoutOverlap) {
  for (int dp : {2, 3, 4, 8, 16, 64, 100}) {
    Scenario s = pipeline(schedule::one_f_one_b(1, 3), times(1, 2));
    s.topology = plain_topology(1e11, 2e-6, 1);
    s.axes.set_dp(dp);
    s.overlap_grad_reduce = false;
    s.bucket_bytes = 1e12;
    for (auto& chunk : s.chunks[0]) chunk.grad_bytes = chunk.param_bytes = 200e6;
    const double ring = planner::ring_all_reduce_time(200e6, dp, 1e11, 2e-6);
    EXPECT_NEAR(simulate(s).step, 9 + ring, 1e-9) << dp;
    EXPECT_NEAR(simulate(s).mean.comm[Axis::dp_shard], ring, 1e-9) << dp;
    // Stage 1: a gather before, a reduce-scatter after.
    s.zero = 1;
    s.overlap_param_gather = false;
    EXPECT_NEAR(simulate(s).step, 9 + ring, 1e-9) << dp;
  }
}

// With overlap n buckets become ready evenly during the last backward. Exposed is the last bucket,
// or all of them in a row after the first if the network is slower.
TEST(ClosedForms, MatchOverlappedBuckets) {
  for (const double bucket_seconds : {0.01, 0.1, 0.25, 0.4, 1.0}) {
    for (int n : {1, 2, 5, 10}) {
      Scenario s = pipeline(schedule::one_f_one_b(1, 4), times(1, 2));
      s.axes.set_dp(2);  // an all-reduce of D sends D
      s.topology = plain_topology(1e9);
      s.bucket_bytes = bucket_seconds * 1e9;
      for (auto& chunk : s.chunks[0]) chunk.grad_bytes = n * s.bucket_bytes;
      const double gap = 2.0 / n;
      const double want =
          bucket_seconds <= gap ? 12 + bucket_seconds : 12 - 2 + gap + n * bucket_seconds;
      EXPECT_NEAR(simulate(s).step, want, 1e-9) << bucket_seconds << " " << n;
    }
  }
}

// Bytes sent equal the planner's formula for every stage and policy.
TEST(ClosedForms, MatchTrafficFormulas) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const ReducePolicy policy : {ReducePolicy::each, ReducePolicy::last}) {
      for (const bool keep : {false, true}) {
        for (const bool overlap : {false, true}) {
          for (int dp : {1, 2, 5, 8}) {
            Scenario s = pipeline(schedule::one_f_one_b(2, 6), times(1, 2));
            s.zero = stage;
            s.policy = policy;
            s.keep_params = keep;
            s.overlap_grad_reduce = s.overlap_param_gather = overlap;
            s.axes.set_dp(dp);
            s.hop_bytes = 1e6;
            for (auto& rank : s.chunks) {
              for (auto& chunk : rank) {
                chunk.grad_bytes = 4e8;
                chunk.param_bytes = 2e8;
                chunk.units = 3;
              }
            }
            const Result r = simulate(s);
            const auto want =
                planner::data_parallel_traffic({stage, dp, 6, 2e8, 4e8, policy, keep});
            for (const RankTime& rank : r.ranks) {
              EXPECT_NEAR(rank.sent[Axis::dp_shard], want.total(), 1e-3) << stage << " " << dp;
              EXPECT_EQ(rank.sent[Axis::pp], 6e6);
            }
            expect_sums(r);
          }
        }
      }
    }
  }
}

// On a fast network, stage 3 costs only the first gather and the last reduction.
TEST(ClosedForms, Stage3HidesBehindComputation) {
  Scenario s = pipeline(schedule::one_f_one_b(1, 4), times(1, 2));
  s.zero = 3;
  s.policy = ReducePolicy::each;
  s.axes.set_dp(2);
  s.chunks[0][0].units = 10;
  s.chunks[0][0].param_bytes = s.chunks[0][0].grad_bytes = 10 * 2 * 0.02e9;  // 0.02 s a unit
  EXPECT_NEAR(simulate(s).step, 12 + 0.02 + 0.02, 1e-9);
  // Without prefetch, each of the 2 · 4 · 10 gathers is exposed, and so are the 4 · 10 reductions,
  // which precede gathers in the queue.
  s.overlap_param_gather = false;
  EXPECT_NEAR(simulate(s).step, 12 + 120 * 0.02, 1e-9);
}

// If a unit has several buckets of gradients, all but the last are hidden behind its computation.
// The last one is ready when the unit ends, and the next gather follows it in the queue.
TEST(ClosedForms, Stage3BucketsHideBehindUnits) {
  for (const int units : {1, 3, 8}) {
    for (const int buckets : {1, 2, 5}) {
      for (const int micros : {1, 4}) {
        Scenario s = pipeline(schedule::one_f_one_b(1, micros), times(1.0 * units, 2.0 * units));
        s.zero = 3;
        s.policy = ReducePolicy::each;
        s.axes.set_dp(2);
        s.overlap_param_gather = false;
        constexpr double kUnit = 0.125;  // seconds of its gather, and of its reduction
        s.chunks[0][0].units = units;
        s.chunks[0][0].param_bytes = s.chunks[0][0].grad_bytes = units * 2 * kUnit * 1e9;
        s.bucket_bytes = 2 * kUnit * 1e9 / buckets;
        const double computing = 3.0 * units * micros, gathers = 2 * kUnit * units * micros;
        s.reduce_units = true;
        EXPECT_NEAR(simulate(s).step, computing + gathers + kUnit * units * micros, 1e-9);
        s.reduce_units = false;
        for (const bool by_events : {false, true}) {
          EXPECT_NEAR(simulate(s, {.by_events = by_events}).step,
                      computing + gathers + kUnit / buckets * units * micros, 1e-9)
              << units << " units, " << buckets << " buckets of each";
        }
      }
    }
  }
}

TEST(ClosedForms, Stage3IsBoundByASlowNetwork) {
  Scenario s = pipeline(schedule::one_f_one_b(1, 4), times(0, 0));
  s.zero = 3;
  s.policy = ReducePolicy::each;
  s.axes.set_dp(4);
  s.chunks[0][0].units = 5;
  s.chunks[0][0].param_bytes = s.chunks[0][0].grad_bytes = 1e9;
  EXPECT_NEAR(simulate(s).step, 4 * 3 * 0.75, 1e-9);
}

TEST(ClosedForms, RejectInvalidScenarios) {
  const auto refused = [](const auto& change) {
    Scenario s = pipeline(schedule::one_f_one_b(2, 4), times(1, 2));
    change(s);
    EXPECT_THROW(simulate(s), UsageError);
  };
  refused([](Scenario& s) { s.axes.set_dp(0); });
  refused([](Scenario& s) { s.zero = 4; });
  refused([](Scenario& s) { s.jitter = -1; });
  refused([](Scenario& s) { s.topology.inside.bandwidth = 0; });
  refused([](Scenario& s) { s.chunks.clear(); });
  refused([](Scenario& s) { s.chunks[0].pop_back(); });
  refused([](Scenario& s) { s.interference = -1; });
  refused([](Scenario& s) { s.order = "tp,dp"; });
  refused([](Scenario& s) { s.chunks[0][0].forward = -1; });
  refused([](Scenario& s) { s.chunks[0][0].forward = std::nan(""); });
  refused([](Scenario& s) { s.stragglers.push_back({2, 1.5}); });
  refused([](Scenario& s) { s.bucket_bytes = 0; });
}

}  // namespace
}  // namespace tessera::simulator
