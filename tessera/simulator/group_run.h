#pragma once

#include <cstdint>
#include <vector>

#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Simulates a step without a pipeline, all replicas piece by piece: [Note: lockstep]. Gives the
// result of Run without events, in a fraction of the time.
Result run_group(const Scenario& scenario, int replicas);

// Time of a computation relative to the plan, over the tp neighbors of one worker.
struct Pace {
  double slowest = 1, mean = 1;
};
// Returns the factors of stragglers, by rank; empty if there are none.
std::vector<double> slowness(const Scenario& scenario);
// Returns the pace of the `computed`-th operation of the worker whose first rank is `first`. The
// numbers of its tp neighbors are `stride` apart.
Pace pace_of(const Scenario& scenario, const std::vector<double>& slow, int first, int stride,
             std::int64_t computed);

// Adds the bytes that a member sends for one collective of its replica and, for a reduce-scatter,
// for the all-reduce of its shard over the replicas.
void add_sent(PerAxis<double>& sent, const Scenario& scenario, planner::Collective kind,
              double bytes);

}  // namespace tessera::simulator
