#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/step.h"
#include "tessera/schedule/schedule.h"

namespace tessera::simulator {

// A rank that computes `factor` times as long as the others.
struct Straggler {
  int rank = 0;
  double factor = 1;
};

// One optimizer step to be simulated: the planner's, and what is random or amiss in it.
struct Scenario : planner::Step {
  double jitter = 0;  // standard deviation of the logarithm of what a computation takes
  std::vector<Straggler> stragglers;
  std::uint64_t seed = 0;

  schedule::Schedule make_schedule() const {
    return schedule::make(schedule, pp(), static_cast<int>(micros), chunks_per_rank());
  }
  bool irregular() const { return jitter > 0 || !stragglers.empty(); }
  // All replicas do the same at the same time: one of them says it all.
  bool symmetric() const;
};

// Throws UsageError for what cannot be.
void check(const Scenario& scenario);

}  // namespace tessera::simulator
