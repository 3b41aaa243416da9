#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/state_layout.h"
#include "tessera/planner/question.h"
#include "tessera/schedule/schedule.h"
#include "tessera/simulator/network.h"

namespace tessera::simulator {

// What one pipeline chunk costs for one micro-batch, and what data parallelism moves for it.
struct Chunk {
  double forward = 0;  // seconds, tensor-parallel communication included
  double backward_input = 0;
  double backward_weight = 0;
  double tp_forward = 0, tp_backward = 0;  // how much of that is communication
  double grad_bytes = 0;                   // of the parameters on this rank
  double param_bytes = 0;
  int units = 1;  // that stage 3 gathers one by one
};

// A rank that computes `factor` times as long as the others.
struct Straggler {
  int rank = 0;
  double factor = 1;
};

// One optimizer step to be simulated, with ranks as [Note: rank order] has them: tp neighbours
// share a node first, then dp neighbours.
struct Scenario {
  schedule::Schedule schedule = schedule::one_f_one_b(1, 1);
  std::vector<std::vector<Chunk>> chunks;  // [pipeline rank][chunk]
  Axes axes;                               // pp: as the schedule has ranks
  Fabric fabric;
  double hop_bytes = 0;    // a rank sends to the next stage, and as much back
  double hop_latency = 0;  // seconds besides the network's; all of them if there are no bytes
  double tied_bytes = 0;   // gradient of a parameter on the first and the last pipeline rank
  double optimizer = 0;    // seconds, after all gradients of all ranks are there

  int zero = 0;
  ReducePolicy policy = ReducePolicy::last;
  bool keep_params = false;
  bool overlap_grad_reduce = true;
  bool overlap_param_gather = true;
  double bucket_bytes = 25e6;

  double jitter = 0;  // standard deviation of the logarithm of what a computation takes
  std::vector<Straggler> stragglers;
  std::uint64_t seed = 0;

  int dp() const { return axes.dp(); }
  int tp() const { return axes.tp(); }
  int pp() const { return schedule.ranks; }
  int world() const { return static_cast<int>(axes.with("pp", pp()).world()); }
  bool irregular() const { return jitter > 0 || !stragglers.empty(); }
  int rank(int p, int d) const { return axes.rank_of(Place::of(d, 0, p)); }
  int node(int rank) const { return rank / fabric.per_node; }
  // Members of a dp group that share a node.
  int dp_per_node() const;
  // All replicas do the same at the same time: one of them says it all.
  bool symmetric() const;
};

// Throws UsageError for what cannot be.
void check(const Scenario& scenario);

// All chunks alike.
std::vector<std::vector<Chunk>> equal_chunks(const schedule::Schedule& schedule,
                                             const Chunk& chunk);

// What the planner knows about a configuration, as a scenario.
Scenario scenario_of(const planner::Question& settled);

}  // namespace tessera::simulator
