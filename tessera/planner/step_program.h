#pragma once

#include <vector>

#include "tessera/planner/step.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {

// One computation of a chunk, with the data-parallel communication that overlaps it:
// [Note: a step].
struct StepOp {
  double work = 0;       // seconds of the rank's own computation, to which jitter applies
  PerAxis<double> comm;  // seconds of communication along tp and cp
  int pieces = 1;        // number of pieces, each of which waits for a gather if `gathers`
  bool gathers = false;
  int reduces = 0;        // number of reductions issued while it runs
  bool blocking = false;  // issues them all at the end, and the next computation waits
  int late_reduces = 0;   // reductions after all computation of the step
};

// Returns the operation of a scheduled action. `first`, `last`: it is the chunk's first or last
// action of this kind in the step.
StepOp step_op(const Step& step, schedule::Kind kind, const StepChunk& chunk,
               const Transfers& gathers, const Transfers& reductions, bool first, bool last);

// Returns the fraction of piece `piece` (of `pieces`) at which `share` of the operation is done.
// More than 1 means a later piece. A share that ends with a piece belongs to that piece; the last
// piece takes the rest.
double part_of_piece(double share, int piece, int pieces);

// Seconds that a rank waits for data-parallel communication or is slowed down by it.
struct DpSeconds {
  double shards = 0;  // by collectives of its replica
  double across = 0;  // by all-reduces over the replicas
  double total() const { return shards + across; }
  DpSeconds& operator+=(const DpSeconds& other) {
    shards += other.shards;
    across += other.across;
    return *this;
  }
};
// Splits a wait of a rank by the rule of [Note: two queues]. `shards_done`: time at which the
// collectives of its replica that it waits for are done; `sums_ran`: seconds that all-reduces over
// replicas run during the wait.
DpSeconds split_wait(bool shares_links, double from, double until, double shards_done,
                     double sums_ran);

// Number of a rank's gathers that are issued at the start of the step, and whether computation
// waits for all of them.
struct StepStart {
  int gathers = 0;
  bool wait = false;
};
StepStart step_start(const Step& step, int all_gathers);

// Action of the schedule, with the data needed to run it.
struct Op : StepOp {
  schedule::Kind kind = schedule::Kind::forward;
  int micro = 0;
  int chunk = 0;
  int peer = -1;       // of a message: the pipeline rank at the other end
  int peer_chunk = 0;  // and the chunk there
};

// Operations of a pipeline rank in one step; equal for all its replicas.
struct RankProgram {
  std::vector<Op> ops;
  std::vector<int> gathers;  // chunk of each gather, in the order of use
  StepStart start;
  struct OfChunk {
    Transfers gather, reduce;
  };
  std::vector<OfChunk> chunks;  // collectives of each chunk
};

std::vector<RankProgram> make_rank_programs(const Step& step, const Places& places,
                                            const schedule::Schedule& schedule);

}  // namespace tessera::planner
