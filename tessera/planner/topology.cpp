#include "tessera/planner/topology.h"

#include <algorithm>
#include <bit>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

int tree_levels(int n) { return n <= 1 ? 0 : std::bit_width(static_cast<unsigned>(n - 1)); }

// Returns the share of the bandwidth that switches leave to a group spanning `span` nodes.
double above_switches(const Topology& topology, int span, bool on_a_rail) {
  double share = 1;
  if (on_a_rail) return share;
  for (const SwitchLevel& level : topology.switches) {
    if (level.nodes < span) share = std::min(share, 1 / std::max(1.0, level.oversubscription));
  }
  return share;
}

// Returns the bandwidth of one of the groups that share a node's adapters. `rails`: traffic goes
// from an adapter to the same adapter of another node.
double far_share(const Topology& topology, const GroupPlace& place, int in_node, bool rails) {
  const double nics = std::max(1, topology.nics);
  const double own = std::clamp(nics * in_node / std::max(1, topology.per_node), 1.0, nics);
  const double fair = nics / std::max(1, place.crossing);
  return topology.nic.bandwidth * std::min(own, fair) * above_switches(topology, place.span, rails);
}

CollectiveCost ring_or_tree(const Topology& topology, Collective kind, double bytes,
                            const GroupPlace& place, Algorithm algorithm) {
  const int m = place.in_node, nodes = place.nodes();
  const int trips = kind == Collective::all_reduce ? 2 : 1;
  const double near = topology.inside.latency, far = topology.nic.latency;
  double volume = trips * (place.ranks - 1.0) / place.ranks * bytes;
  CollectiveCost cost;
  const bool exchange = kind == Collective::all_to_all;
  if (algorithm == Algorithm::tree && !exchange) {
    if (trips == 2) volume = 2 * bytes;
    cost.latency = trips * (tree_levels(m) * near + tree_levels(nodes) * far);
  } else {
    const int rounds =
        algorithm == Algorithm::mixed ? std::min(nodes - 1, 2 * tree_levels(nodes)) : nodes - 1;
    cost.latency = trips * ((m - 1) * near + rounds * far);
  }
  if (nodes == 1 || m > 1) cost.inside_bytes = volume;
  if (nodes > 1) {
    const bool pair = algorithm != Algorithm::ring && trips == 2 && nodes == 2;
    cost.far_bytes = pair       ? bytes
                     : exchange ? m * (place.ranks - m * 1.0) / place.ranks * bytes
                                : volume;
    cost.far_bandwidth =
        far_share(topology, place, m, m == 1 || pair || algorithm == Algorithm::tree);
  }
  return cost;
}

struct Stride {
  std::int64_t inner = 1;  // rank distance between neighbors along the axis
  std::int64_t size = 1;
  std::int64_t world = 1;
};

Stride stride_of(const std::vector<AxisSize>& order, Axis axis) {
  Stride stride;
  for (const AxisSize& each : order) {
    if (each.axis == axis) {
      stride.inner = stride.world;
      stride.size = std::max(1, each.size);
    }
    stride.world *= std::max(1, each.size);
  }
  return stride;
}

}  // namespace

Algorithm parse_algorithm(std::string_view text) {
  if (text == "mixed") return Algorithm::mixed;
  if (text == "ring") return Algorithm::ring;
  if (text == "tree") return Algorithm::tree;
  if (text == "auto") return Algorithm::automatic;
  throw UsageError(str("got ", quote(text), "; must be mixed, ring, tree or auto",
                       did_you_mean(text, {"mixed", "ring", "tree", "auto"})));
}

double CollectiveCost::seconds(const Topology& topology) const {
  double transfer = 0;
  if (inside_bytes > 0) transfer = inside_bytes / topology.inside.bandwidth;
  if (far_bytes > 0) transfer = std::max(transfer, far_bytes / far_bandwidth);
  return latency + transfer;
}

CollectiveCost collective_cost(const Topology& topology, Collective kind, double bytes,
                               const GroupPlace& asked) {
  if (asked.ranks <= 1) return {};
  GroupPlace place = asked;
  place.in_node = std::clamp(asked.in_node, 1, asked.ranks);
  if (kind == Collective::send) {
    CollectiveCost cost;
    const bool far = place.nodes() > 1;
    cost.latency = far ? topology.nic.latency : topology.inside.latency;
    (far ? cost.far_bytes : cost.inside_bytes) = bytes;
    if (far) cost.far_bandwidth = far_share(topology, place, 1, true);
    return cost;
  }
  const auto by = [&](Algorithm algorithm) {
    return ring_or_tree(topology, kind, bytes, place, algorithm);
  };
  if (topology.algorithm != Algorithm::automatic) return by(topology.algorithm);
  const CollectiveCost ring = by(Algorithm::ring), tree = by(Algorithm::tree);
  return ring.seconds(topology) <= tree.seconds(topology) ? ring : tree;
}

double pace_of(const Topology& topology, const GroupPlace& place) {
  if (place.nodes() <= 1) return 1;
  return std::min(1.0, far_share(topology, place, place.in_node, place.in_node == 1) /
                           topology.inside.bandwidth);
}

GroupPlace axis_place(const Topology& topology, const std::vector<AxisSize>& order, Axis axis) {
  const Stride s = stride_of(order, axis);
  const std::int64_t per_node = std::max(1, topology.per_node), block = s.inner * s.size;
  GroupPlace place;
  place.ranks = static_cast<int>(s.size);
  if (s.size == 1) return place;
  // Blocks of ranks that hold whole groups lie inside nodes if the block size divides per_node.
  const bool inside = s.world <= per_node || (block <= per_node && per_node % block == 0);
  if (inside) {
    place.in_node = place.ranks;
    return place;
  }
  place.span = static_cast<int>(std::max<std::int64_t>(2, (block + per_node - 1) / per_node));
  std::int64_t in_node = std::clamp<std::int64_t>(per_node / s.inner, 1, s.size);
  if (in_node == s.size) in_node = (s.size + 1) / 2;  // some group is split between two nodes
  place.in_node = static_cast<int>(in_node);
  place.crossing = static_cast<int>(
      std::clamp<std::int64_t>(per_node / in_node, 1, std::min(s.inner, per_node)));
  return place;
}

GroupPlace group_place(const Topology& topology, const std::vector<AxisSize>& order, AxisSet axes) {
  // Joins axes that follow one another. Axes of one rank do not separate them.
  std::vector<AxisSize> joined;
  std::vector<Axis> found;
  bool follows = false;
  for (const AxisSize& each : order) {
    if (each.size <= 1) continue;
    const bool own = axes.contains(each.axis);
    if (own && follows) {
      joined.back().size *= each.size;
      continue;
    }
    joined.push_back(each);
    if (own) found.push_back(each.axis);
    follows = own;
  }
  GroupPlace place;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const GroupPlace one = axis_place(topology, joined, found[i]);
    if (i == 0) {
      place = one;
      continue;
    }
    // Axes with others between them: each neighbor along the outer one has a group of the inner.
    const int inner_nodes = place.nodes();
    place.ranks *= one.ranks;
    place.in_node *= inner_nodes == 1 ? one.in_node : 1;
    place.span = std::max(place.span, one.span);
    place.crossing =
        place.nodes() == 1 ? 1 : std::max(1, std::max(1, topology.per_node) / place.in_node);
  }
  return place;
}

GroupPlace neighbor_place(const Topology& topology, const std::vector<AxisSize>& order, Axis axis) {
  const Stride s = stride_of(order, axis);
  GroupPlace place;
  place.ranks = s.size > 1 ? 2 : 1;
  if (s.size == 1) return place;
  const GroupPlace whole = axis_place(topology, order, axis);
  if (whole.nodes() == 1) {
    place.in_node = 2;
    return place;
  }
  const std::int64_t per_node = std::max(1, topology.per_node);
  place.span = static_cast<int>(std::max<std::int64_t>(2, 1 + (s.inner + per_node - 1) / per_node));
  place.crossing = static_cast<int>(std::min(s.inner, per_node));
  return place;
}

}  // namespace tessera::planner
