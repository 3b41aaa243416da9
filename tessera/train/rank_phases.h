#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// Where a phase stands in kPhaseNames.
constexpr std::size_t phase_index(std::string_view name) {
  return static_cast<std::size_t>(std::find(kPhaseNames.begin(), kPhaseNames.end(), name) -
                                  kPhaseNames.begin());
}

// This rank's phases in a step.
RankPhases phases_of(const StepMetrics& step);

// Ranks that take longer than others at forward, backward or optimizer. A phase that is little of a
// step says nothing; stages of a pipeline may differ, so a rank is compared with those of its own.
std::vector<SlowRank> find_slow_ranks(const std::vector<RankPhases>& ranks, const Axes& axes);

// What all ranks told of their latest steps: means that forget, so that a rank that was slow and
// has recovered is not blamed for ever.
class RecentPhases {
 public:
  // Of one step, all ranks' in their order.
  void add(const std::vector<RankPhases>& ranks);
  // How many steps are in the means.
  int steps() const { return steps_; }
  std::vector<RankPhases> means() const;

 private:
  std::vector<RankPhases> sums_;
  int steps_ = 0;
  std::int64_t told_ = 0;  // steps; the first, which pays for what is done once, stays no longer
                           // than it is alone
};

// With fewer steps than that, what one rank takes longer is chance.
inline constexpr int kStepsToCompare = 10;

}  // namespace tessera::train
