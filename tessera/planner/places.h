#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/question.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// The network of a run, and where the groups of its axes lie on it: [Note: order of axes].
struct Places {
  Topology topology;
  PerAxis<GroupPlace> along;
  GroupPlace hop;   // two stages that follow each other
  GroupPlace tied;  // the first stage and the last, which share an embedding

  // Of one collective, alone on the network.
  double seconds(Collective kind, double bytes, const GroupPlace& place) const {
    return collective_cost(topology, kind, bytes, place).seconds(topology);
  }
};
// `order`: the axes with their sizes, innermost first.
Places places_on(const Topology& topology, const std::vector<AxisSize>& order);
// "tp,dp,pp" with the sizes of the axes. Throws UsageError unless each of them is there once.
std::vector<AxisSize> in_order(std::string_view order, const Axes& axes);
// The axes of a run, innermost first.
std::vector<AxisSize> axis_order(const Question& settled);
// Of a settled run.
Places places(const Question& settled);

// Numbers of replicas that are worth a try, most replicas first: a replica fills a node, or 2, 4, 8
// … of them. Empty where data-parallel ranks do not fill several nodes.
std::vector<int> replica_counts(const Question& settled);
// Bytes that leave a node in a step along the axes of data parallelism, if each rank sends `sent`.
double dp_bytes_out_of_node(const Places& places, const PerAxis<double>& sent);

}  // namespace tessera::planner
