#pragma once

#include <cstdint>

#include "tessera/core/state_layout.h"

namespace tessera::planner {

// Bytes of model state on one rank. Doubles, because shards need not divide evenly; exact below
// 2^53 bytes.
struct StateBytes {
  double params = 0;
  double grads = 0;
  double optimizer = 0;

  double total() const { return params + grads + optimizer; }
};

// Returns the state of `params` parameters per rank before ZeRO, that is after tp and pp, sharded
// over `shards` ranks as the stage defines. With ReducePolicy::last the gradient is not sharded.
StateBytes state_bytes(const StateLayout& layout, int stage, double params, int shards,
                       ReducePolicy policy);
StateBytes state_bytes(const StateLayout& layout, int stage, double params, int shards);

// Returns the state of frozen parameters, which have no gradients, master copies or moments.
StateBytes frozen_bytes(const StateLayout& layout, int stage, double params, int shards);

// Returns the largest number of parameters whose state fits in `bytes`.
double largest_model(const StateLayout& layout, int stage, int shards, double bytes);

// [Note: hybrid sharding] The ranks with equal parameters, along dp and cp, form R replicas of S
// ranks. State is sharded over the S ranks of a replica. A gradient bucket of B bytes is
// reduce-scattered in each replica, for which each rank sends (S-1)/S · B, and the sums are
// all-reduced over the replicas: 2(R-1)/R · B/S. Parameters are gathered inside a replica. R is 1
// at stage 0, where no state is sharded.

// Bytes each rank sends in one optimizer step for data parallelism, ring-equivalent.
struct DataParallelTraffic {
  double reduce = 0;     // all_reduce or reduce_scatter of gradients, along dp_shard
  double gather = 0;     // all_gather of parameters, along dp_shard
  double replicate = 0;  // all_reduce of the shards' sums, along dp_replicate
  double along_shards() const { return reduce + gather; }
  double total() const { return reduce + gather + replicate; }
};
struct TrafficInput {
  int stage = 0;
  int dp = 1;              // ranks that average gradients: RunConfig::copies()
  int micro_batches = 1;   // gradient accumulation
  double param_bytes = 0;  // of all parameters, in the type that is sent
  double grad_bytes = 0;   // of all gradients, in the type that is sent
  ReducePolicy policy = ReducePolicy::last;
  bool keep_params = false;  // stage 3: parameters stay gathered between forward and backward
  int replicas = 1;          // divides dp: [Note: hybrid sharding]
};
DataParallelTraffic data_parallel_traffic(const TrafficInput& question);

}  // namespace tessera::planner
