#pragma once

#include "tessera/planner/step.h"

namespace tessera::planner {

// One computation of a chunk, with what data parallelism does beside it: [Note: a step].
struct StepOp {
  double work = 0;  // seconds of the rank's own computation: jitter stretches it
  double tp = 0;    // seconds of tensor-parallel communication
  int pieces = 1;   // it is cut into, each of which waits for a gather if `gathers`
  bool gathers = false;
  int reduces = 0;        // gradients go to their reduction in so many pieces while it runs
  bool blocking = false;  // or all at its end, and the next computation waits for them
  int late_reduces = 0;   // after all computation of the step
};

// `first` and `last`: whether the chunk has computed nothing of this kind in the step before, and
// whether it will not again.
StepOp step_op(const Step& step, schedule::Kind kind, const StepChunk& chunk,
               const Transfers& gathers, const Transfers& reductions, bool first, bool last);

// In what part of a piece, of so many that an operation is cut into, a share of it is done: at most
// 1, else in a later one. What is ready as a piece ends belongs to it, and all that is left to the
// last.
double part_of_piece(double share, int piece, int pieces);

// Seconds that a rank waits for data parallelism, or is slowed down by it.
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

// Of all gathers of a rank, those that are asked for as the step begins, and whether all of them
// must be there before anything is computed.
struct StepStart {
  int gathers = 0;
  bool wait = false;
};
StepStart step_start(const Step& step, int all_gathers);

}  // namespace tessera::planner
