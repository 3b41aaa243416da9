#include "tessera/planner/places.h"

namespace tessera::planner {

std::vector<AxisSize> axis_order(const Question& q) {
  return {{"tp", q.tp()}, {"dp", q.dp()}, {"pp", q.pp()}};
}

Places places(const Question& q) {
  Places result;
  result.topology = q.hardware.topology(q.per_node);
  const std::vector<AxisSize> order = axis_order(q);
  result.tp = axis_place(result.topology, order, "tp");
  result.dp = axis_place(result.topology, order, "dp");
  result.hop = neighbour_place(result.topology, order, "pp");
  // As far apart as stages can be, and no more of them at work than in a hop.
  result.tied = result.hop;
  result.tied.span = axis_place(result.topology, order, "pp").span;
  return result;
}

}  // namespace tessera::planner
