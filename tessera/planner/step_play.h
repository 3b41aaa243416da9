#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/step.h"

namespace tessera::planner {

// Where the seconds of a step went on one pipeline rank, besides its computation.
struct PlayedRank {
  // dp, dp_replicate: waiting for collectives, or slowed down by them, [Note: two queues].
  // pp: waiting for messages in transit.
  PerAxis<double> comm;
  double idle = 0;  // it waited for other stages to compute
  double end = 0;   // of its last collective
};

// [Note: closed forms] One replica through the schedule, rank by rank, each with the clock of its
// dp group ([Note: lockstep]); what the simulator plays by events, without messages and collectives
// in each other's way. Of a long step a few micro-batches are looked at, and the rest goes on as
// their last ones: it grows linearly.
struct PlayedStep {
  std::vector<PlayedRank> ranks;
  double end = 0;  // of all, before the tied gradient and the optimizer
};
PlayedStep play_step(const Step& step, const Places& places);
// All micro-batches, however many there are.
PlayedStep play_whole_step(const Step& step, const Places& places);

}  // namespace tessera::planner
