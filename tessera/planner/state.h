#pragma once

#include <cstdint>

#include "tessera/core/state_layout.h"

namespace tessera::planner {

// Bytes of model state on one rank. Doubles: shares of a whole that need not divide, and below
// 2^53 bytes exact.
struct StateBytes {
  double params = 0;
  double grads = 0;
  double optimizer = 0;

  double total() const { return params + grads + optimizer; }
};

// `params` parameters on every rank before ZeRO, that is after tp and pp have cut the model;
// `dp` ranks share what the stage shards. With ReducePolicy::last the gradient stays whole.
StateBytes state_bytes(const StateLayout& layout, int stage, double params, int dp,
                       ReducePolicy policy);
StateBytes state_bytes(const StateLayout& layout, int stage, double params, int dp);

// Parameters that are not trained: no gradients, no master copies, no moments.
StateBytes frozen_bytes(const StateLayout& layout, int stage, double params, int dp);

// The largest number of parameters whose state fits.
double largest_model(const StateLayout& layout, int stage, int dp, double bytes);

// Bytes each rank sends in one optimizer step along the data-parallel axis, ring-equivalent.
struct DataParallelTraffic {
  double reduce = 0;  // all_reduce or reduce_scatter of gradients
  double gather = 0;  // all_gather of parameters
  double total() const { return reduce + gather; }
};
struct TrafficQuestion {
  int stage = 0;
  int dp = 1;
  int micro_batches = 1;   // gradient accumulation
  double param_bytes = 0;  // of all parameters in the type that travels
  double grad_bytes = 0;   // of all gradients, likewise
  ReducePolicy policy = ReducePolicy::last;
  bool keep_params = false;  // stage 3: parameters stay gathered between forward and backward
};
DataParallelTraffic data_parallel_traffic(const TrafficQuestion& question);

}  // namespace tessera::planner
