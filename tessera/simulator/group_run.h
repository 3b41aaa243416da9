#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/step_program.h"
#include "tessera/simulator/scenario.h"
#include "tessera/simulator/simulate.h"

namespace tessera::simulator {

// Simulates a step without a pipeline, all replicas piece by piece: [Note: lockstep]. Gives the
// result of Run without events, in a fraction of the time.
Result run_group(const Scenario& scenario, int replicas);

// Time of a computation relative to the plan, over the neighbors of one worker along tp and cp.
struct Pace {
  double slowest = 1, mean = 1;
};
// Adds the time of an operation at that pace to a worker. It waits for slower neighbors along tp,
// or along cp if there are none. Returns the seconds of the operation.
double charge_op(RankTime& time, const Scenario& scenario, const planner::StepOp& op,
                 const Pace& pace);
// Returns the factors of stragglers, by rank; empty if there are none.
std::vector<double> slowness(const Scenario& scenario);
// Returns the pace of the `computed`-th operation of the worker whose first rank is `first`.
Pace pace_of(const Scenario& scenario, const std::vector<double>& slow, int first,
             const planner::RankStrides& strides, std::int64_t computed);

// Adds the bytes that a member sends for one collective of its replica and, for a reduce-scatter,
// for the all-reduce of its shard over the replicas. `expert_bytes`: of those with the same
// experts.
void add_sent(PerAxis<double>& sent, const Scenario& scenario, planner::Collective kind,
              double bytes, double expert_bytes);

}  // namespace tessera::simulator
