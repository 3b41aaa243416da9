#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/axis.h"

namespace tessera::planner {
struct RunConfig;
}

namespace tessera::simulator {

struct Scenario;

// Time of a step on one rank, in seconds. The parts add up to the step.
struct RankTime {
  double compute = 0;
  // tp, cp: communication inside the layers, and waiting for slower neighbors. pp: waiting for a
  // message in transit. dp: waiting for gathers and reductions. dp_replicate: for all-reduces over
  // replicas.
  PerAxis<double> comm;
  double bubble = 0;  // waiting for other stages to compute
  double optimizer = 0;
  PerAxis<double> sent;  // bytes; not counted along tp and cp

  double step() const { return compute + sum(comm) + bubble + optimizer; }
  // Adds `share` times another, to average over ranks.
  void add(const RankTime& other, double share) {
    compute += share * other.compute;
    for (const Axis axis : kAllAxes) {
      comm[axis] += share * other.comm[axis];
      sent[axis] += share * other.sent[axis];
    }
    bubble += share * other.bubble;
    optimizer += share * other.optimizer;
  }
};

// Interval of a computation, a collective or a message, for traces.
struct Span {
  // Row of a trace.
  enum Lane : std::uint8_t { computing, data_parallel, pipeline, over_replicas };
  // Names of the rows, by Lane.
  static constexpr const char* kLaneNames[] = {"compute", "data parallel", "pipeline",
                                               "data parallel over replicas"};
  int worker = 0;
  Lane lane = computing;
  const char* what = "";
  int micro = -1, chunk = -1;
  double begin = 0, end = 0;
};

// Result of a simulated step.
struct Result {
  double step = 0;              // seconds
  int replicas = 1;             // number of simulated replicas; 1 represents all if they are equal
  std::vector<RankTime> ranks;  // [p · replicas + d], each for all its neighbors along tp and cp
  RankTime mean;
  double utilization = 0;    // fraction of the step spent computing, mean of all ranks
  double bubble = 0;         // fraction of the step spent waiting for other stages
  std::uint64_t events = 0;  // number of events; 0: simulated without events
  std::vector<Span> spans;

  // Returns the times of pipeline rank p in replica d.
  const RankTime& at(int p, int d = 0) const {
    return ranks[static_cast<std::size_t>(p) * static_cast<std::size_t>(replicas) +
                 static_cast<std::size_t>(replicas == 1 ? 0 : d)];
  }
};

// Options of simulate().
struct Options {
  bool shared_links = true;  // false: messages and collectives do not slow each other down
  bool full = false;         // simulate every replica, even if one suffices
  int traced = 0;            // number of ranks to record spans for, replica by replica
  bool by_events = false;    // use events even without a pipeline, instead of [Note: lockstep]
};

// Simulates a step of a resolved run. Throws UsageError if only the size of the model is known.
Result simulate(const planner::RunConfig& resolved, const Options& options = {});
// Simulates a step with jitter and stragglers. Throws UsageError if the scenario is invalid.
Result simulate(const Scenario& scenario, const Options& options = {});

}  // namespace tessera::simulator
