#include "tessera/planner/state.h"

namespace tessera::planner {

StateBytes state_bytes(const StateLayout& layout, int stage, double params, int shards,
                       ReducePolicy policy) {
  const Sharding sharded = sharding_of_stage(stage);
  const bool grads_cut = sharded.grads && policy == ReducePolicy::each;
  const auto share = [&](bool cut) { return cut ? params / shards : params; };
  return {layout.param * share(sharded.params), layout.grad * share(grads_cut),
          layout.optimizer() * share(sharded.optimizer)};
}

StateBytes state_bytes(const StateLayout& layout, int stage, double params, int shards) {
  return state_bytes(layout, stage, params, shards, default_reduce_policy(stage));
}

StateBytes frozen_bytes(const StateLayout& layout, int stage, double params, int shards) {
  return {layout.param * (sharding_of_stage(stage).params ? params / shards : params), 0, 0};
}

double largest_model(const StateLayout& layout, int stage, int shards, double bytes) {
  return bytes / state_bytes(layout, stage, 1.0, shards).total();
}

DataParallelTraffic data_parallel_traffic(const TrafficInput& q) {
  const Sharding sharded = sharding_of_stage(q.stage);
  const int shards = q.dp / q.replicas;
  const double hop =
      static_cast<double>(shards - 1) / shards;  // share of a buffer sent in one ring pass
  const int reductions = q.policy == ReducePolicy::each ? q.micro_batches : 1;
  // An all-reduce is a reduce-scatter and an all-gather of the same bytes.
  const double passes = sharded.optimizer ? 1 : 2;
  int gathers = sharded.optimizer ? 1 : 0;  // stages 1 and 2 gather the updated parameters once
  if (sharded.params) gathers = q.micro_batches * (q.keep_params ? 1 : 2);
  const double across = 2 * static_cast<double>(q.replicas - 1) / q.replicas / shards;
  return {hop * passes * reductions * q.grad_bytes, hop * gathers * q.param_bytes,
          across * reductions * q.grad_bytes};
}

}  // namespace tessera::planner
