// Memory in the course of a step: the moments of the plan at the times of the passes.

#include "tessera/simulator/memory_over_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/layer_program.h"
#include "tessera/planner/program_cost.h"

namespace tessera::simulator {
namespace {

using Settings = std::vector<std::pair<const char*, const char*>>;

planner::RunConfig run_of(const Settings& given) {
  planner::RunConfig settings = planner::RunConfig::for_plan();
  for (const auto& [key, value] : given) settings.set(key, value);
  return planner::resolve(look_up(settings, planner::Catalog()));
}

double most_of(const MemoryOverStep& over) {
  double most = 0;
  for (const auto& moment : over.moments) most = std::max(most, over.total(moment));
  return most;
}
double most_activations(const MemoryOverStep& over) {
  double most = 0;
  for (const auto& moment : over.moments) most = std::max(most, moment.activations);
  return most;
}

// Expects the maximum of the curve of each pipeline rank to be the peak of its plan, to a byte.
void expect_peaks_of_plan(const planner::RunConfig& q) {
  const std::vector<planner::Memory> plans = planner::memory_by_rank(q);
  for (int rank = 0; rank < q.pp(); ++rank) {
    SCOPED_TRACE(str("rank ", rank));
    const planner::Memory& plan = plans[static_cast<std::size_t>(rank)];
    const MemoryOverStep over = memory_over_step(q, rank);
    EXPECT_NEAR(most_of(over), plan.total(), 1);
    EXPECT_LE(most_activations(over), plan.activations + 1);
    EXPECT_GE(plan.not_at_once, 0);
    EXPECT_LE(plan.not_at_once, plan.temporary);
    EXPECT_NEAR(over.moments.back().activations, 0, 1);
    EXPECT_TRUE(std::is_sorted(over.moments.begin(), over.moments.end(),
                               [](const auto& a, const auto& b) { return a.seconds < b.seconds; }));
    for (const auto& moment : over.moments) {
      ASSERT_GE(moment.activations, 0);
      ASSERT_GE(moment.temporary, 0);
    }
  }
}

const Settings kMeshes[] = {{{"dp", "1"}},
                            {{"dp", "8"}},
                            {{"dp", "2"}, {"tp", "2"}},
                            {{"pp", "2"}},
                            {{"pp", "4"}, {"tp", "2"}},
                            {{"pp", "4"}, {"dp", "4"}},
                            {{"pp", "2"}, {"cp", "2"}}};
const char* const kSchedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"};
const char* const kRecompute[] = {"none", "selective", "full"};

class MemoryOverStepOf : public testing::TestWithParam<const char*> {};

TEST_P(MemoryOverStepOf, PeaksAtThePlanOnEveryRank) {
  for (const Settings& mesh : kMeshes) {
    for (const char* const schedule : kSchedules) {
      for (const char* const recompute : kRecompute) {
        for (const char* const zero : {"0", "1", "2", "3"}) {
          Settings given = mesh;
          const Settings others = {{"model", "gpt2-774m"},   {"hardware", "h200"},
                                   {"software", GetParam()}, {"schedule", schedule},
                                   {"recompute", recompute}, {"zero", zero},
                                   {"grad-accum", "8"}};
          given.insert(given.end(), others.begin(), others.end());
          std::string text;
          for (const auto& [key, value] : given) text += str("--", key, " ", value, " ");
          SCOPED_TRACE(text);
          expect_peaks_of_plan(run_of(given));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Software, MemoryOverStepOf,
                         testing::Values("tessera", "megatron", "pytorch"));

TEST(MemoryOverStep, PeaksAtThePlanWithUnevenChunks) {
  for (const Settings& given : std::vector<Settings>{
           {{"model", "gpt2-xl"}, {"schedule", "interleaved"}, {"chunks", "3"}},
           {{"model", "gpt2-xl"}, {"schedule", "interleaved"}, {"chunks", "5"}, {"split", "work"}},
           {{"model", "gpt2-xl"}, {"schedule", "interleaved"}, {"grad-accum", "9"}},
           {{"model", "gpt2-xl"}, {"schedule", "zb-v"}, {"split", "work"}},
           {{"model", "gpt2-xl"}, {"schedule", "zb-v"}, {"grad-accum", "3"}},
           {{"model", "gpt2-xl"}, {"schedule", "zb-h1"}, {"grad-accum", "3"}},
           {{"model", "gpt2-xl"}, {"lora-rank", "8"}, {"schedule", "interleaved"}},
           {{"model", "deepseek-moe-16b"}, {"schedule", "interleaved"}, {"recompute", "full"}},
           {{"model", "deepseek-moe-16b"}, {"schedule", "zb-v"}, {"dp", "4"}, {"ep", "4"}},
           {{"model", "llama2-7b"}, {"schedule", "interleaved"}}}) {
    for (const char* const software : {"tessera", "megatron"}) {
      if (given[1].first == std::string_view("lora-rank") && software[0] == 'm') continue;
      Settings all = {{"pp", "4"}, {"hardware", "h200"}, {"software", software}};
      const auto has = [&](const char* key) {
        return std::any_of(given.begin(), given.end(),
                           [&](const auto& each) { return std::string_view(each.first) == key; });
      };
      if (!has("grad-accum")) all.emplace_back("grad-accum", "8");
      all.insert(all.end(), given.begin(), given.end());
      std::string text;
      for (const auto& [key, value] : all) text += str("--", key, " ", value, " ");
      SCOPED_TRACE(text);
      expect_peaks_of_plan(run_of(all));
    }
  }
}

TEST(MemoryOverStep, PeaksAtThePlanOfAnOptimizerOfWholeMatrices) {
  for (const char* const zero : {"0", "1", "3"}) {
    for (const char* const micro : {"1", "8"}) {
      planner::RunConfig q = run_of({{"model", "llama2-7b"},
                                     {"hardware", "h200"},
                                     {"software", "tessera"},
                                     {"dp", "8"},
                                     {"seq", "256"},
                                     {"micro-batch", micro},
                                     {"zero", zero}});
      q.layout.matrix_moments = 4;
      SCOPED_TRACE(str("stage ", zero, ", micro-batch ", micro));
      expect_peaks_of_plan(q);
    }
  }
}

TEST(MemoryOverStep, IgnoresTheScheduleOfATesseraRunWithoutAPipeline) {
  const auto curve = [](const char* schedule) {
    return memory_over_step(run_of({{"model", "gpt2-xl"},
                                    {"hardware", "h200"},
                                    {"software", "tessera"},
                                    {"grad-accum", "4"},
                                    {"schedule", schedule}}),
                            0);
  };
  const MemoryOverStep reference = curve("1f1b");
  for (const char* const schedule : kSchedules) {
    const MemoryOverStep over = curve(schedule);
    ASSERT_EQ(over.moments.size(), reference.moments.size()) << schedule;
    for (std::size_t i = 0; i < over.moments.size(); ++i) {
      ASSERT_EQ(over.total(over.moments[i]), reference.total(reference.moments[i])) << schedule;
    }
  }
}

TEST(MemoryOverStep, ForwardKeepsLayerByLayer) {
  const planner::RunConfig q = run_of({{"model", "gpt2-xl"}, {"hardware", "h200"}});
  const planner::Programs programs = planner::programs_in_memory(q);
  const auto held = [&](const planner::Program& program) {
    return static_cast<double>(planner::held_bytes(program, q.recompute));
  };
  const auto forward = planner::pass_memory(q).chunks.at(0).forward;
  ASSERT_EQ(forward.size(), 51U);  // the start, the embedding, 48 layers and the head
  double kept = held(programs.embedding), last = 0;
  for (std::size_t i = 1; i + 1 < forward.size(); ++i) {
    EXPECT_DOUBLE_EQ(forward[i].activations, kept) << "after layer " << i - 1;
    EXPECT_GE(forward[i].done, last);
    last = forward[i].done;
    kept += held(programs.layer);
  }
  EXPECT_DOUBLE_EQ(forward.back().activations, kept - held(programs.layer) + held(programs.head));
  EXPECT_DOUBLE_EQ(forward.back().done, 1);
}

// Returns how often the temporaries of the layers, after the loss, rise above half of their
// maximum.
int humps(const std::vector<planner::PassPoint>& points) {
  double most = 0;
  for (std::size_t i = 2; i < points.size(); ++i) most = std::max(most, points[i].temporary);
  int count = 0;
  bool above = false;
  for (std::size_t i = 2; i < points.size(); ++i) {
    const bool now = points[i].temporary > most / 2;
    count += now && !above ? 1 : 0;
    above = now;
  }
  return count;
}

TEST(MemoryOverStep, BackwardRecomputesLayerByLayer) {
  for (const char* software : {"tessera", "megatron"}) {
    const planner::RunConfig q = run_of({{"model", "gpt2-xl"},
                                         {"hardware", "h200"},
                                         {"software", software},
                                         {"micro-batch", "8"},
                                         {"recompute", "full"}});
    const auto backward = planner::pass_memory(q).chunks.at(0).backward;
    EXPECT_EQ(humps(backward), 48) << software;
    for (std::size_t i = 1; i < backward.size(); ++i) {
      EXPECT_GE(backward[i].done, backward[i - 1].done) << software;
      EXPECT_LE(backward[i].done, 1) << software;
    }
  }
}

TEST(MemoryOverStep, SplitBackwardHoldsActivationsForTheWeights) {
  const planner::Memory whole{.activations = 100, .temporary = 30};
  planner::PassMemory each;
  each.chunks = {{{{0, 0, 0}, {1, 100, 0}}, {{0, 100, 0}, {0.5, 60, 30}, {1, 0, 0}}, 30}};
  const auto over = memory_over_passes(whole, each, 0,
                                       {{schedule::Kind::forward, 0, 0, 1},
                                        {schedule::Kind::backward_input, 0, 1, 2},
                                        {schedule::Kind::backward_weight, 0, 3, 4}},
                                       5);
  const auto at = [&](double seconds) {
    const auto found = std::find_if(over.moments.rbegin(), over.moments.rend(),
                                    [&](const auto& m) { return m.seconds == seconds; });
    return std::pair{found->activations, found->temporary};
  };
  EXPECT_EQ(at(1.5), (std::pair{60.0, 70.0}));  // 40 for the weights, and 30
  EXPECT_EQ(at(2), (std::pair{0.0, 100.0}));
  EXPECT_EQ(at(3), (std::pair{0.0, 100.0}));
  EXPECT_EQ(at(4), (std::pair{0.0, 0.0}));
}

TEST(MemoryOverStep, LongStepsKeepTheirMaxima) {
  const planner::RunConfig q =
      run_of({{"model", "gpt2-xl"}, {"hardware", "h200"}, {"grad-accum", "40"}});
  const MemoryOverStep over = memory_over_step(q, 0);
  EXPECT_LE(over.moments.size(), kMostMoments);
  EXPECT_GT(over.moments.size(), kMostMoments / 8);
  const planner::Memory plan = planner::memory_of(q);
  EXPECT_DOUBLE_EQ(most_of(over), plan.total());
  EXPECT_DOUBLE_EQ(most_activations(over), plan.activations);
  EXPECT_EQ(over.moments.front().seconds, 0);
  EXPECT_EQ(over.moments.back().seconds, over.step);
}

}  // namespace
}  // namespace tessera::simulator
