#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/step.h"
#include "tessera/schedule/schedule.h"

namespace tessera::simulator {

// Rank whose computations take `factor` times as long as those of the others.
struct Straggler {
  int rank = 0;
  double factor = 1;
};

// Optimizer step to simulate: the planner's step, with jitter and stragglers.
struct Scenario : planner::Step {
  double jitter = 0;  // standard deviation of the logarithm of computation times
  std::vector<Straggler> stragglers;
  std::uint64_t seed = 0;

  schedule::Schedule make_schedule() const { return Step::make_schedule(micros); }
  bool irregular() const { return jitter > 0 || !stragglers.empty(); }
  // Returns true if all replicas do the same at the same time, so that simulating one suffices.
  bool symmetric() const;
};

// Returns the step of a resolved run, without jitter and stragglers. Throws UsageError if only the
// size of the model is known.
Scenario scenario_of(const planner::RunConfig& resolved);
// Throws UsageError if the scenario is invalid.
void check(const Scenario& scenario);

}  // namespace tessera::simulator
