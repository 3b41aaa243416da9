#include "tessera/planner/mesh_orders.h"

#include <algorithm>

#include "tessera/core/text.h"
#include "tessera/planner/places.h"

namespace tessera::planner {
namespace {

// Returns whether no collective of any size is slower at `a` than at `b`. Checking 0 and many bytes
// suffices, because the time is linear in the bytes.
bool never_slower(const Topology& t, const GroupPlace& a, const GroupPlace& b) {
  constexpr double kManyBytes = 1e15;
  for (const Collective kind : {Collective::all_reduce, Collective::reduce_scatter,
                                Collective::all_gather, Collective::all_to_all, Collective::send}) {
    const auto of = [&](const GroupPlace& place, double bytes) {
      return collective_cost(t, kind, bytes, place).seconds(t);
    };
    if (of(a, 0) > of(b, 0) || of(a, kManyBytes) > of(b, kManyBytes)) return false;
  }
  return true;
}

}  // namespace

MeshOrders mesh_orders(const RunConfig& q, bool fixed) {
  const Topology topology = q.hardware.topology(q.per_node);
  MeshOrders mesh;
  std::vector<Places> all;
  const auto add = [&](const std::string& order) {
    const Places places = places_on(topology, in_order(order, q.axes), q.ep());
    for (const Places& other : all) {
      bool same = places.hop == other.hop && places.tied == other.tied;
      for (const Axis axis : kAllAxes) {
        if (axis != Axis::pp) same = same && places.along[axis] == other.along[axis];
      }
      same = same && places.expert_shard == other.expert_shard;
      if (same) return;
    }
    all.push_back(places);
    mesh.orders.push_back(order);
    const GroupPlace& own = places.shard;
    const GroupPlace& across = places.along[Axis::dp_replicate];
    for (const ReplicaPlace& other : mesh.replicas) {
      if (own == other.shard && across == other.across &&
          places.expert_shard == other.expert_shard) {
        return;
      }
    }
    mesh.replicas.push_back({own, q.hardware.interference * pace_of(topology, own), across,
                             q.hardware.interference * pace_of(topology, across),
                             places.expert_shard});
  };
  add(q.order);
  std::vector<std::string> names;
  for (const Axis axis : kAllAxes) {
    // in_order() places dp_replicate just outside dp, and cp just outside tp.
    const bool placed = axis == Axis::dp_replicate || axis == Axis::cp || !multiplies_ranks(axis);
    if (!placed) names.emplace_back(axis_name(axis));
  }
  std::sort(names.begin(), names.end());
  while (!fixed) {
    add(join(names, ","));
    if (!std::next_permutation(names.begin(), names.end())) break;
  }
  for (std::size_t i = 0; i < all.size() && mesh.for_layers.empty(); ++i) {
    const bool best = std::all_of(all.begin(), all.end(), [&](const Places& other) {
      for (const Axis axis : kInLayerAxes) {
        if (!never_slower(topology, all[i].along[axis], other.along[axis])) return false;
      }
      return true;
    });
    if (best) mesh.for_layers = {mesh.orders[i]};
  }
  if (mesh.for_layers.empty()) mesh.for_layers = mesh.orders;
  return mesh;
}

}  // namespace tessera::planner
