#include "tessera/train/rank_phases.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tessera/core/median.h"

namespace tessera::train {
namespace {

// In the order of kPhaseNames.
constexpr std::array<double StepMetrics::*, kPhaseNames.size()> kMembers = {
    &StepMetrics::step_s,      &StepMetrics::forward_s, &StepMetrics::backward_s,
    &StepMetrics::optimizer_s, &StepMetrics::data_s,    &StepMetrics::comm_exposed_s,
    &StepMetrics::bubble_s,    &StepMetrics::graph_s};

constexpr int kMaxSteps = 50;       // in the means
constexpr double kMinShare = 0.05;  // of a step; shorter phases are not compared

}  // namespace

RankPhases phases_of(const StepMetrics& step) {
  RankPhases phases{};
  for (std::size_t p = 0; p < phases.size(); ++p) phases[p] = step.*kMembers[p];
  return phases;
}

std::vector<SlowRank> find_slow_ranks(const std::vector<RankPhases>& ranks, const Axes& axes) {
  constexpr std::array<std::pair<const char*, std::size_t>, 3> kCompared = {
      {{"forward", phase_index("forward_s")},
       {"backward", phase_index("backward_s")},
       {"optimizer", phase_index("optimizer_s")}}};
  const auto stage_of = [&](std::size_t rank) {
    return axes.index(kLayerAxes, axes.coordinate_of(static_cast<std::int64_t>(rank)));
  };
  std::map<int, std::array<std::vector<double>, kCompared.size()>> times;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto& own = times[stage_of(r)];
    for (std::size_t p = 0; p < kCompared.size(); ++p) {
      own[p].push_back(ranks[r][kCompared[p].second]);
    }
  }
  std::map<int, std::array<double, kCompared.size()>> medians;
  for (auto& [stage, phases] : times) {
    for (std::size_t p = 0; p < kCompared.size(); ++p) {
      medians[stage][p] = median(std::move(phases[p]));
    }
  }
  std::vector<SlowRank> slow_ranks;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto& usual = medians.at(stage_of(r));
    const double step = usual[0] + usual[1] + usual[2];
    SlowRank slow{static_cast<int>(r), "", kSlow};
    for (std::size_t p = 0; p < kCompared.size(); ++p) {
      const double took = ranks[r][kCompared[p].second];
      if (usual[p] <= kMinShare * step || took <= slow.factor * usual[p]) continue;
      slow = {slow.rank, kCompared[p].first, took / usual[p]};
    }
    if (!slow.phase.empty()) slow_ranks.push_back(slow);
  }
  return slow_ranks;
}

void RecentPhases::add(const std::vector<RankPhases>& ranks) {
  if (added_++ <= 1) sums_.assign(ranks.size(), {}), steps_ = 0;
  const bool halved = steps_ >= kMaxSteps;
  if (halved) steps_ /= 2;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t p = 0; p < kPhaseNames.size(); ++p) {
      if (halved) sums_[r][p] /= 2;
      sums_[r][p] += ranks[r][p];
    }
  }
  ++steps_;
}

std::vector<RankPhases> RecentPhases::means() const {
  std::vector<RankPhases> means = sums_;
  for (RankPhases& rank : means) {
    for (double& each : rank) each /= steps_;
  }
  return means;
}

}  // namespace tessera::train
