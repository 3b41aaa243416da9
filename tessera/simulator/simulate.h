#pragma once

#include <cstdint>
#include <vector>

#include "tessera/simulator/scenario.h"

namespace tessera::simulator {

// Where the seconds of a step went on one rank. They add up to the step.
struct RankTime {
  double compute = 0;
  // tp: tensor-parallel communication and waiting for slower tp neighbors. pp: waiting for a
  // message in transit. dp: waiting for gathers and reductions. dp_replicate: for all-reduces over
  // replicas.
  PerAxis<double> comm;
  double bubble = 0;  // waiting for other stages to compute
  double optimizer = 0;
  PerAxis<double> sent;  // bytes; along tp they are not counted

  double step() const { return compute + sum(comm) + bubble + optimizer; }
  // Adds so much of another, to average over ranks.
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

// What a rank, or its dp group, or a message did; for traces.
struct Span {
  // Which row of a trace it belongs to.
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

// What a simulated step was like.
struct Result {
  double step = 0;
  int replicas = 1;             // that were simulated: 1 stands for all where they are alike
  std::vector<RankTime> ranks;  // [p · replicas + d], each for all its tp neighbours
  RankTime mean;
  double utilisation = 0;    // computing, of the step and all ranks
  double bubble = 0;         // idle for other stages, likewise
  std::uint64_t events = 0;  // 0: without events
  std::vector<Span> spans;

  // Of pipeline rank p in replica d.
  const RankTime& at(int p, int d = 0) const {
    return ranks[static_cast<std::size_t>(p) * static_cast<std::size_t>(replicas) +
                 static_cast<std::size_t>(replicas == 1 ? 0 : d)];
  }
};

// How exactly it is simulated.
struct Options {
  bool shared_links = true;  // false: as if messages and collectives had links of their own
  bool full = false;         // simulate every replica, though one would do
  int traced = 0;            // record spans for so many ranks, replica by replica
  bool by_events = false;    // though without a pipeline [Note: lockstep] says the same at once
};

// Throws UsageError for a scenario that cannot be.
Result simulate(const Scenario& scenario, const Options& options = {});

}  // namespace tessera::simulator
