#include "tessera/train/rank_phases.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tessera/core/text.h"
#include "tessera/train/trainer.h"
#include "tests/ranks.h"

namespace tessera::train {
namespace {

std::vector<std::string> described(const std::vector<SlowRank>& slow_ranks) {
  std::vector<std::string> out;
  for (const SlowRank& slow : slow_ranks) {
    out.push_back(str(slow.rank, " ", slow.phase, " ", fixed(slow.factor, 2)));
  }
  return out;
}

// Returns ranks of equal speed within a stage; each stage has another speed.
std::vector<RankPhases> usual(const Axes& axes) {
  std::vector<RankPhases> ranks;
  for (std::int64_t r = 0; r < axes.world(); ++r) {
    StepMetrics step;
    const int stage = axes.coordinate_of(r).pp();
    step.forward_s = 1 + stage;
    step.backward_s = 2 + 3 * stage;
    step.optimizer_s = 0.01;  // too short to be compared
    step.step_s = 20;
    ranks.push_back(phases_of(step));
  }
  return ranks;
}

TEST(RankPhases, FindsASlowRankOnAnyMeshWithUnequalStages) {
  for (const char* text : {"dp=4", "tp=4", "dp=3,tp=2", "dp=3,pp=2", "dp=2,tp=2,pp=4"}) {
    const Axes axes(text);
    EXPECT_TRUE(find_slow_ranks(usual(axes), axes).empty()) << text;
    for (std::int64_t r = 0; r < axes.world(); ++r) {
      std::vector<RankPhases> ranks = usual(axes);
      RankPhases& slow = ranks[static_cast<std::size_t>(r)];
      slow[phase_index("optimizer_s")] *= 8;
      EXPECT_TRUE(find_slow_ranks(ranks, axes).empty()) << text << ", rank " << r;
      slow[phase_index("forward_s")] *= 1.5;
      slow[phase_index("backward_s")] *= 3;
      EXPECT_EQ(described(find_slow_ranks(ranks, axes)),
                std::vector<std::string>{str(r, " backward 3.00")})
          << text;
    }
  }
  // A rank that is alone in its stage is compared with no other.
  std::vector<RankPhases> ranks = usual("pp=4");
  ranks[2][phase_index("forward_s")] *= 9;
  EXPECT_TRUE(find_slow_ranks(ranks, "pp=4").empty());
}

TEST(RankPhases, MeansDropTheFirstStepAndDecay) {
  RecentPhases recent;
  const auto added = [&](double forward) {
    StepMetrics step;
    step.forward_s = forward;
    recent.add({phases_of(step), phases_of(StepMetrics())});
    return recent.means()[0][phase_index("forward_s")];
  };
  EXPECT_EQ(recent.steps(), 0);
  EXPECT_EQ(added(100), 100);  // the only step so far
  EXPECT_EQ(added(2), 2);
  EXPECT_EQ(added(4), 3);
  EXPECT_EQ(recent.steps(), 2);
  for (int i = 0; i < 1000; ++i) added(7);
  EXPECT_LE(recent.steps(), 50);
  EXPECT_NEAR(added(7), 7, 1e-3);
  for (int i = 0; i < 100; ++i) added(3);
  EXPECT_LT(added(3), 4.5);
  EXPECT_EQ(recent.means()[1], RankPhases{});
}

// agree() sends the times of every rank to rank 0.
TEST(RankPhases, Rank0GetsTimesOfAllRanksOnAnyMesh) {
  for (const char* text : {"dp=2", "tp=2", "pp=2", "dp=2,tp=2", "dp=2,pp=2"}) {
    RunConfig config;
    config.layers = 2;
    config.hidden = 16;
    config.heads = 2;
    config.vocab = 12;
    config.seq = 16;
    config.micro_batch = 1;
    config.grad_accum = 2;
    config.axes = Axes(text);
    const auto ranks = static_cast<std::size_t>(config.axes.world());
    std::vector<RankPhases> own(ranks);
    StepMetrics written;
    Summary summary;
    std::mutex mutex;
    over(static_cast<int>(ranks), [&](const comm::Group& world) {
      Trainer trainer(config, world);
      const bool last = world.rank() + 1 == world.size();
      EXPECT_EQ(trainer.agree(last ? 2 : 0), 2) << text;  // no step was finished yet
      StepMetrics step = trainer.step();
      {
        const std::lock_guard lock(mutex);
        own[static_cast<std::size_t>(world.rank())] = phases_of(step);
      }
      EXPECT_EQ(trainer.agree(last ? 1 : 0), 1) << text;
      trainer.put_ranks(step);
      EXPECT_EQ(step.ranks.empty(), world.rank() != 0) << text;
      if (world.rank() == 0) written = step;
      trainer.step();
      EXPECT_EQ(trainer.agree(0), 0) << text;
      const Summary ended = trainer.summary();
      if (world.rank() == 0) summary = ended;
    });
    EXPECT_EQ(written.ranks, own) << text;
    EXPECT_TRUE(written.slow_ranks.empty()) << "one step is not enough";
    ASSERT_EQ(summary.ranks.size(), ranks) << text;
    for (const RankPhases& rank : summary.ranks) {
      for (const char* phase : {"step_s", "forward_s", "backward_s", "optimizer_s"}) {
        EXPECT_GT(rank[phase_index(phase)], 0) << text << ", " << phase;
      }
      EXPECT_EQ(rank[phase_index("bubble_s")] > 0, config.axes.pp() > 1) << text;
    }
  }
}

}  // namespace
}  // namespace tessera::train
