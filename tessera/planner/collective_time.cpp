#include <algorithm>

#include "tessera/planner/formulas.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

// On one node a ring. Over several, a ring too: its slowest links are those between the nodes, of
// which it uses as many side by side as it has devices in a node and the network has rails; it
// starts with a round inside the nodes and one between them.
double collective_time(const Hardware& hardware, Collective kind, double bytes, int ranks,
                       int per_node) {
  if (ranks <= 1) return 0;
  const int inside = std::clamp(per_node, 1, ranks), nodes = (ranks + inside - 1) / inside;
  const Link& near = hardware.inside;
  const Link& far = hardware.between;
  if (kind == Collective::send) {
    const Link& link = nodes > 1 ? far : near;
    return link.latency + bytes / link.bandwidth;
  }
  const double half = kind == Collective::all_reduce ? 1 : 0.5;
  if (nodes == 1) return half * ring_all_reduce_time(bytes, ranks, near.bandwidth, near.latency);
  const double bandwidth =
      std::min(near.bandwidth, far.bandwidth * std::min(inside, hardware.rails));
  return half * (ring_all_reduce_bytes(bytes, ranks) / bandwidth + 2 * (inside - 1) * near.latency +
                 2 * (nodes - 1) * far.latency);
}

}  // namespace tessera::planner
