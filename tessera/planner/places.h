#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/run_config.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// Network of a run, and placement of the groups of its axes: [Note: order of axes].
struct Places {
  Topology topology;
  PerAxis<GroupPlace> along;
  GroupPlace shard;         // kShardAxes, whose ranks share state
  GroupPlace expert_shard;  // those of them with the same experts
  GroupPlace hop;           // two consecutive stages
  GroupPlace tied;          // the first and the last stage, which share a tied embedding

  // Returns the seconds of one collective without other traffic.
  double seconds(Collective kind, double bytes, const GroupPlace& place) const {
    return collective_cost(topology, kind, bytes, place).seconds(topology);
  }
};
// Returns the placement on `topology`. `order`: the axes with their sizes, innermost first. `ep`:
// expert-parallel ranks, which are neighbors among those of kShardAxes.
Places places_on(const Topology& topology, const std::vector<AxisSize>& order, int ep = 1);
// Parses an order such as "tp,dp,pp" and adds the sizes. Throws UsageError unless each axis is
// listed exactly once, without ep. cp and dp_replicate may be omitted: they are just outside tp and
// dp.
std::vector<AxisSize> in_order(std::string_view order, const Axes& axes);
// Returns the axes of a run, innermost first.
std::vector<AxisSize> axis_order(const RunConfig& resolved);
// Returns the placement of a resolved run.
Places places(const RunConfig& resolved);

// Returns the numbers of replicas worth trying, largest first: a replica fills 1, 2, 4, 8 … nodes.
// Empty if data-parallel ranks do not fill several nodes.
std::vector<int> replica_counts(const RunConfig& resolved);
// Returns the numbers of expert-parallel ranks worth trying on a mesh, smallest first: those that
// divide both the experts, so that all ranks have equally many, and the ranks that shard state.
// Only 1 if the model has no experts.
std::vector<int> expert_rank_counts(const ModelShape& model, const Axes& mesh);
// Returns the data-parallel bytes that leave a node in a step if each rank sends `sent`.
double dp_bytes_out_of_node(const Places& places, const PerAxis<double>& sent);

// Describes the network of a run, the bandwidth of each axis, and the coordinates of the ranks on
// the first nodes.
std::string topology_text(const RunConfig& resolved);
// Draws the same.
std::string topology_svg(const RunConfig& resolved);

}  // namespace tessera::planner
