#pragma once

#include <vector>

#include "tessera/planner/step_ops.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

// One action of the schedule with all that the run must know about it.
struct Op : StepOp {
  schedule::Kind kind = schedule::Kind::forward;
  int micro = 0;
  int chunk = 0;
  int peer = -1;       // of a message: the pipeline rank at its other end
  int peer_chunk = 0;  // and the chunk there
};

// What a pipeline rank does in a step; the same for all its replicas.
struct RankProgram {
  std::vector<Op> ops;
  std::vector<int> gathers;  // chunks of each, in the order in which they are needed
  StepStart start;
  struct OfChunk {
    Transfers gather, reduce;
  };
  std::vector<OfChunk> chunks;  // what each chunk sends
};

std::vector<RankProgram> make_rank_programs(const Step& step, const Places& places,
                                            const schedule::Schedule& schedule);

}  // namespace tessera::planner
