#pragma once

#include <vector>

#include "tessera/schedule/schedule.h"
#include "tessera/simulator/scenario.h"

namespace tessera::simulator {

// One action of the schedule with all that the run must know about it.
struct Op {
  schedule::Kind kind = schedule::Kind::forward;
  int micro = 0;
  int chunk = 0;
  int peer = -1;       // of a message: the pipeline rank at its other end
  int peer_chunk = 0;  // and the chunk there
  double work = 0;     // seconds of the rank's own computation: jitter stretches it
  double tp = 0;       // seconds of tensor-parallel communication
  int pieces = 1;      // it is cut into, each of which waits for a gather if `gathers`
  bool gathers = false;
  int reduces = 0;  // gradients go to their reduction in so many buckets while it runs
  double reduce_bytes = 0;
  bool blocking = false;  // or all at its end, and the next computation waits for them
};

// What a pipeline rank does in a step; the same for all its replicas.
struct Program {
  std::vector<Op> ops;
  std::vector<double> gathers;  // bytes of each, in the order in which they are needed
  int gathers_at_start = 0;     // asked for when the step begins
  int prefetch = 0;             // asked for before they are needed, later on
  bool wait_at_start = false;   // for those of the start, before anything is computed
  struct Reduce {
    int buckets = 0;
    double bytes = 0;
  };
  std::vector<Reduce> tail;  // after all computation
};

std::vector<Program> make_programs(const Scenario& scenario);

}  // namespace tessera::simulator
