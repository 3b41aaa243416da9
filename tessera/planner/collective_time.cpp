#include <algorithm>

#include "tessera/planner/step_time.h"

namespace tessera::planner {

double collective_time(const Hardware& hardware, Collective kind, double bytes, int ranks,
                       int per_node) {
  const Topology topology = hardware.topology(std::max(per_node, hardware.per_node));
  GroupPlace place;
  place.ranks = ranks;
  place.in_node = std::clamp(per_node, 1, std::max(1, ranks));
  place.span = place.nodes();
  if (place.nodes() > 1 && kind != Collective::send) {
    place.crossing = std::max(1, topology.per_node / place.in_node);
  }
  return collective_cost(topology, kind, bytes, place).seconds(topology);
}

}  // namespace tessera::planner
