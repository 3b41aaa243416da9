#pragma once

#include <string>
#include <vector>

#include "tessera/planner/question.h"
#include "tessera/planner/topology.h"

namespace tessera::planner {

// The network of a run, and where the groups of its axes lie on it: [Note: order of axes].
struct Places {
  Topology topology;
  GroupPlace tp, dp;
  GroupPlace hop;   // two stages that follow each other
  GroupPlace tied;  // the first stage and the last, which share an embedding

  double seconds(Collective kind, double bytes, const GroupPlace& place) const {
    return collective_cost(topology, kind, bytes, place).seconds(topology);
  }
};
// The axes of a run, innermost first.
std::vector<AxisSize> axis_order(const Question& settled);
Places places(const Question& settled);

}  // namespace tessera::planner
