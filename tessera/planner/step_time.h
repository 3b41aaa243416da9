#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"
#include "tessera/planner/step.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// Returns the step time by closed forms: equal to the simulator's without a pipeline, and close to
// it with one ([Note: closed forms]).
StepTime step_time(const Step& step);
// As above, for describe_step(resolved).
StepTime step_time(const RunConfig& resolved);
// Returns a lower bound of the step time in seconds, computed quickly for searches.
double least_step_time(const Step& step);
// Possible placement of the groups that share state and of those over replicas.
struct ReplicaPlace {
  GroupPlace shard;
  double interference = 0;  // at that placement
  GroupPlace across = {};   // placement of all-reduces over replicas
  double across_interference = 0;
  GroupPlace expert_shard = {};  // placement of those of experts
};
// Returns the smallest lower bound over these placements.
double least_step_time(const Step& step, const std::vector<ReplicaPlace>& anywhere);

// Time of a step on one pipeline rank, apart from its computation.
struct PlayedRank {
  // dp, dp_replicate: waiting for collectives, or slowed down by them, [Note: two queues].
  // pp: waiting for messages in transit.
  PerAxis<double> comm;
  double idle = 0;  // waiting for other stages to compute
  double end = 0;   // end of its last collective
};

// [Note: closed forms] Runs one replica through the schedule, rank by rank, each with the clock of
// its dp group ([Note: lockstep]). The simulator does the same with events, and also models
// contention between messages and collectives. For a long step, only a few micro-batches are run
// and the rest is extrapolated linearly.
struct PlayedStep {
  std::vector<PlayedRank> ranks;
  double end = 0;  // end of all ranks, before the tied gradient and the optimizer
};
// Runs a step, extrapolated if it is long.
PlayedStep play_step(const Step& step, const Places& places);
// Runs all micro-batches, without extrapolation.
PlayedStep play_whole_step(const Step& step, const Places& places);

}  // namespace tessera::planner
