#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "tessera/planner/step_time.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

using schedule::Kind;

// Seconds that one pipeline rank computes for one micro-batch, over all its chunks.
struct RankTime {
  double forward = 0, backward_input = 0, backward_weight = 0;
};

// Reference clock of a schedule with a separate duration for every rank, split evenly over its
// chunks.
double clock(const schedule::Schedule& s, const std::vector<RankTime>& ranks) {
  std::map<std::tuple<int, int, bool>, double> done;  // (stage, micro, backward)
  std::vector<double> now(ranks.size(), 0);
  std::vector<std::size_t> next(ranks.size(), 0);
  const int stages = s.stage_count();
  for (bool moved = true; moved;) {
    moved = false;
    for (int r = 0; r < s.ranks; ++r) {
      const auto& actions = s.actions[r];
      for (; next[r] < actions.size(); ++next[r], moved = true) {
        const schedule::Action& a = actions[next[r]];
        if (!schedule::is_compute(a.kind)) continue;
        const int stage = s.stage(r, a.chunk);
        const bool backward = a.kind == Kind::backward || a.kind == Kind::backward_input;
        double ready = 0;
        const auto wait = [&](int from, bool of_backward) {
          const auto found = done.find({from, a.micro, of_backward});
          if (found == done.end()) return false;
          ready = std::max(ready, found->second);
          return true;
        };
        if (a.kind == Kind::forward && stage > 0 && !wait(stage - 1, false)) break;
        if (backward && !(stage + 1 < stages ? wait(stage + 1, true) : wait(stage, false))) break;
        const RankTime& t = ranks[r];
        const double takes = a.kind == Kind::forward          ? t.forward
                             : a.kind == Kind::backward       ? t.backward_input + t.backward_weight
                             : a.kind == Kind::backward_input ? t.backward_input
                                                              : t.backward_weight;
        now[r] = std::max(now[r], ready) + takes / s.chunks;
        if (a.kind != Kind::backward_weight) done[{stage, a.micro, backward}] = now[r];
      }
    }
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) EXPECT_EQ(next[r], s.actions[r].size());
  return *std::max_element(now.begin(), now.end());
}

const RankTime kCosts[] = {{1, 1, 1}, {1, 2, 1}, {1, 1.3, 0.8}, {2, 0.5, 1}, {1, 0.5, 2}};

Step step_of(const schedule::Schedule& schedule, const std::vector<RankTime>& ranks) {
  Step step;
  step.schedule = *find_named<ScheduleChoice>(schedule.name);
  step.micros = schedule.micros;
  step.topology.inside = step.topology.nic = {1e9, 0};
  for (const RankTime& rank : ranks) {
    StepChunk chunk;
    chunk.forward = rank.forward / schedule.chunks;
    chunk.backward_input = rank.backward_input / schedule.chunks;
    chunk.backward_weight = rank.backward_weight / schedule.chunks;
    step.chunks.emplace_back(static_cast<std::size_t>(schedule.chunks), chunk);
  }
  return step;
}

double played(const schedule::Schedule& schedule, const std::vector<RankTime>& ranks) {
  const Step step = step_of(schedule, ranks);
  return play_step(step, step.places()).end;
}

// For any costs of stages, a step that is run completely matches the reference clock.
TEST(StepPlay, ShortStepsMatchTheReferenceClock) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0.7, 1.3);
  for (const std::string& name : schedule::names()) {
    for (int p = 1; p <= 8; ++p) {
      for (int k = name == "interleaved" ? p : 1; k <= 2 * p; ++k) {
        std::vector<RankTime> ranks;
        for (int r = 0; r < p; ++r) {
          ranks.push_back({share(random), 1.3 * share(random), share(random)});
        }
        const schedule::Schedule schedule = schedule::make(name, p, k, 3);
        const double want = clock(schedule, ranks);
        EXPECT_NEAR(played(schedule, ranks), want, 1e-9 * want) << name << " p " << p << " k " << k;
      }
    }
  }
}

// A long step is extrapolated, which is exact for equal stages.
TEST(StepPlay, LongStepsOfEqualStagesMatchTheReferenceClock) {
  for (const RankTime& cost : kCosts) {
    for (const int p : {1, 2, 3, 4, 6, 8}) {
      const std::vector<RankTime> ranks(static_cast<std::size_t>(p), cost);
      for (const int k : {3 * p, 4 * p + 1, 7 * p, 10 * p}) {
        for (const std::string& name : schedule::names()) {
          const schedule::Schedule schedule = schedule::make(name, p, k, 2);
          const double want = clock(schedule, ranks);
          const double near = name == "zb-v" ? 0.01 : 1e-9;
          EXPECT_NEAR(played(schedule, ranks), want, near * want)
              << name << " p " << p << " k " << k << " bi " << cost.backward_input;
        }
      }
    }
  }
}

TEST(StepPlay, LongStepsOfUnequalStagesNearlyMatchTheReferenceClock) {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> share(0.7, 1.3);
  for (const int p : {2, 3, 4, 6, 8}) {
    for (int trial = 0; trial < 10; ++trial) {
      std::vector<RankTime> ranks;
      for (int r = 0; r < p; ++r) ranks.push_back({share(random), share(random), share(random)});
      for (const std::string& name : schedule::names()) {
        const schedule::Schedule schedule = schedule::make(name, p, 12 * p, 2);
        const double want = clock(schedule, ranks);
        EXPECT_NEAR(played(schedule, ranks), want, 0.03 * want) << name << " p " << p;
      }
    }
  }
}

TEST(StepPlay, MatchesAWorkedExample) {
  // Two stages, 8 micro-batches, 120 and 220 ms: 9 slots of 340 ms, plus hops.
  const std::vector<RankTime> ranks(2, RankTime{0.12, 0.11, 0.11});
  Step step = step_of(schedule::one_f_one_b(2, 8), ranks);
  EXPECT_NEAR(step_time(step).step(), 3.06, 1e-12);
  step.hop_latency = 0.005;
  EXPECT_NEAR(step_time(step).step(), 3.06 + 8 * 0.005, 1e-12);
  EXPECT_GT(step_time(step).comm[Axis::pp], 0);
}

// No step is faster than the lower bound used by searches.
TEST(StepPlay, NoStepIsFasterThanItsLowerBound) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> share(0.7, 1.3);
  for (const std::string& name : schedule::names()) {
    for (const int p : {1, 2, 4, 8}) {
      for (const int k : {8, 9, 40}) {
        for (int zero = 0; zero <= 3; ++zero) {
          std::vector<RankTime> ranks;
          for (int r = 0; r < p; ++r) ranks.push_back({share(random), 2 * share(random), 1});
          Step step = step_of(schedule::make(name, p, k, 2), ranks);
          for (auto& rank : step.chunks) {
            for (StepChunk& chunk : rank) {
              chunk.param_bytes = 4e8 * share(random);
              chunk.grad_bytes = 8e8 * share(random);
              chunk.units = 3;
            }
          }
          step.axes.set_dp(16);
          step.zero = zero;
          step.policy = zero < 2 ? ReducePolicy::last : ReducePolicy::each;
          step.interference = 0.5;
          step.bucket_bytes = 1e8;
          step.optimizer = 0.1;
          const double least = least_step_time(step), takes = step_time(step).step();
          EXPECT_LE(least, takes * (1 + 1e-9)) << name << " p " << p << " k " << k;
          EXPECT_GT(least, 0.3 * takes) << name << " p " << p << " k " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::planner
