#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// Returns the index of a phase in kPhaseNames.
constexpr std::size_t phase_index(std::string_view name) {
  return static_cast<std::size_t>(std::find(kPhaseNames.begin(), kPhaseNames.end(), name) -
                                  kPhaseNames.begin());
}

// Returns this rank's phases of a step.
RankPhases phases_of(const StepMetrics& step);

// Returns the ranks that take longer than others for forward, backward or the optimizer. Phases
// that are a small part of a step are ignored. Pipeline stages may differ, so ranks are compared
// only with those of their own stage.
std::vector<SlowRank> find_slow_ranks(const std::vector<RankPhases>& ranks, const Axes& axes);

// Decaying means of the phases of all ranks over their latest steps. Old steps lose weight, so that
// a rank that was slow and has recovered is no longer reported.
class RecentPhases {
 public:
  // Adds one step: the phases of all ranks, by rank.
  void add(const std::vector<RankPhases>& ranks);
  // Number of steps in the means.
  int steps() const { return steps_; }
  std::vector<RankPhases> means() const;

 private:
  std::vector<RankPhases> sums_;
  int steps_ = 0;
  // Number of added steps. The first step has one-time costs, and is dropped once there is another.
  std::int64_t added_ = 0;
};

// Minimum number of steps to compare ranks: with fewer, differences may be noise.
inline constexpr int kStepsToCompare = 10;

}  // namespace tessera::train
