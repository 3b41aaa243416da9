#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

#include "tessera/planner/pipeline_time.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

using schedule::Kind;

// The schedule's clock, with a duration of its own for every rank (cut evenly over its chunks):
// what the closed forms stand for.
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

TEST(PipelineTime, EqualStagesTakeWhatTheClockSays) {
  for (const RankTime& cost : kCosts) {
    for (int p = 1; p <= 8; ++p) {
      const std::vector<RankTime> ranks(p, cost);
      for (int k = 1; k <= 16; ++k) {
        for (const char* name : {"gpipe", "1f1b", "zb-h1"}) {
          const double want = clock(schedule::make(name, p, k), ranks);
          EXPECT_NEAR(pipeline_time(name, ranks, k, 1, 0).total, want, 1e-9 * want)
              << name << " p " << p << " k " << k;
        }
      }
    }
  }
}

TEST(PipelineTime, InterleavedInGroupsOfRanksTakesWhatTheClockSays) {
  for (const RankTime& cost : kCosts) {
    for (int p = 1; p <= 8; ++p) {
      const std::vector<RankTime> ranks(p, cost);
      for (int groups = 1; groups <= 4; ++groups) {
        for (int chunks = 1; chunks <= 4; ++chunks) {
          const int k = p * groups;
          const double want = clock(schedule::interleaved(p, k, chunks), ranks);
          EXPECT_NEAR(pipeline_time("interleaved", ranks, k, chunks, 0).total, want, 1e-9 * want)
              << "p " << p << " k " << k << " chunks " << chunks;
        }
      }
    }
  }
}

TEST(PipelineTime, AVTakesNearlyWhatTheClockSays) {
  for (const RankTime& cost : kCosts) {
    for (int p = 2; p <= 8; ++p) {
      const std::vector<RankTime> ranks(p, cost);
      for (int k = 2 * p; k <= 32; ++k) {
        const double want = clock(schedule::zero_bubble_v(p, k), ranks);
        EXPECT_NEAR(pipeline_time("zb-v", ranks, k, 2, 0).total, want, 0.07 * want)
            << "p " << p << " k " << k << " bi " << cost.backward_input;
      }
    }
  }
}

// The first stage has the embedding, the last the head, and the last is the slower one.
TEST(PipelineTime, AnEmbeddingAndAHeadTakeWhatTheClockSays) {
  for (int p = 2; p <= 8; ++p) {
    std::vector<RankTime> ranks(p, RankTime{1, 1.3, 0.9});
    ranks.front().forward += 0.05;
    ranks.back() = {1.2, 1.5, 1.1};
    for (int k = 1; k <= 16; ++k) {
      for (const char* name : {"gpipe", "1f1b"}) {
        const double want = clock(schedule::make(name, p, k), ranks);
        EXPECT_NEAR(pipeline_time(name, ranks, k, 1, 0).total, want, 1e-9 * want)
            << name << " p " << p << " k " << k;
      }
    }
  }
}

TEST(PipelineTime, AnyStagesTakeNearlyWhatTheClockSays) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> share(0.7, 1.3);
  for (int p = 1; p <= 8; ++p) {
    for (int k = 1; k <= 16; ++k) {
      std::vector<RankTime> ranks;
      for (int r = 0; r < p; ++r) {
        const double s = share(random);
        ranks.push_back({s, 1.3 * s, 0.9 * s});
      }
      const auto ratio = [&](const char* name) {
        return pipeline_time(name, ranks, k, 1, 0).total / clock(schedule::make(name, p, k), ranks);
      };
      EXPECT_NEAR(ratio("gpipe"), 1, 1e-9) << "p " << p << " k " << k;
      EXPECT_NEAR(ratio("1f1b"), 1.06, 0.07) << "p " << p << " k " << k;
      EXPECT_NEAR(ratio("zb-h1"), 1, 0.2) << "p " << p << " k " << k;
    }
  }
}

TEST(PipelineTime, TheWorkedExample) {
  // Two stages, 8 micro-batches, 120 and 220 ms: 9 slots of 340 ms, and hops besides.
  const std::vector<RankTime> ranks(2, RankTime{0.12, 0.11, 0.11});
  EXPECT_NEAR(pipeline_time("1f1b", ranks, 8, 1, 0).total, 3.06, 1e-12);
  const PipelineTime with_hops = pipeline_time("1f1b", ranks, 8, 1, 0.005);
  EXPECT_NEAR(with_hops.total - with_hops.hops, 3.06, 1e-12);
  EXPECT_GT(with_hops.hops, 0);
  EXPECT_EQ(pipeline_time("1f1b", {ranks[0]}, 8, 1, 0.005).hops, 0);
}

}  // namespace
}  // namespace tessera::planner
