#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/plan.h"

// Experts of one run: parameters, rows of each rank, memory by ep, and the exchange of rows.
namespace tessera::planner {

// All-to-alls of rows between expert-parallel ranks, on one rank.
struct ExpertExchange {
  double calls = 0;    // all-to-alls in a step of the rank that makes the most
  double bytes = 0;    // that a rank sends in a step
  double seconds = 0;  // of a step; no computation hides them
  bool crosses_hosts = false;
};

// State of one number of expert-parallel ranks, on the pipeline rank that needs the most memory.
struct ExpertMemory {
  int ep = 1;
  std::int64_t experts = 0;  // of a layer on a rank with the most
  double state = 0;          // bytes of their parameters, gradients and optimizer state
  double needed = 0;         // bytes of the rank in all
  bool fits = false;
  bool crosses_hosts = false;
  std::string refused;  // reason why it is not possible; then nothing above but `ep` is set
};

// Experts of a planned run.
struct ExpertCosts {
  double parameters = 0, active = 0;  // of the model
  double in_experts = 0;              // of the model's parameters
  std::int64_t on_a_rank = 0;         // experts of a layer on a rank with the most
  // Rows of a micro-batch: that a rank routes, the mean that one expert receives, and those that
  // the experts of the busiest rank compute in one layer.
  double routed = 0, mean = 0, busiest = 0;
  double dropped = 0;  // share of the busiest rank's rows above the capacity
  ExpertExchange exchange;
};
// Returns the costs of a plan whose model has experts.
ExpertCosts expert_costs(const Plan& plan);
// Returns the memory of the run with each number of expert-parallel ranks worth trying on its mesh,
// and with its own.
std::vector<ExpertMemory> expert_memory(const Plan& plan);

}  // namespace tessera::planner
