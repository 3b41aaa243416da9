#pragma once

#include <string>
#include <vector>

#include "tessera/planner/run_config.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

// [Note: orders in a search] The placement of axes depends only on the mesh, so the orders with
// different placements are found once per mesh. A configuration has one lower bound of its step
// time over all orders: its chunks with the best order for tp, cp and ep, and data parallelism at
// its best placement. cp is always next to tp. Orders are simulated only for configurations whose
// bound is good enough. Numbers of replicas are handled the same way: each number that fits has its
// own orders and bound, and is proposed only if it is faster than plain sharding.
struct MeshOrders {
  std::vector<std::string> orders;  // the given one first; all have different placements
  // Those with the fastest tp, cp and ep; all if none is always fastest.
  std::vector<std::string> for_layers;
  std::vector<ReplicaPlace> replicas;
};
// Returns the orders of a run's mesh. `fixed`: only its own.
MeshOrders mesh_orders(const RunConfig& config, bool fixed);

}  // namespace tessera::planner
