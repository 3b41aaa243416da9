#include "tessera/planner/places.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::planner {

std::vector<AxisSize> in_order(std::string_view order, const Axes& axes) {
  std::vector<AxisSize> all;
  all.reserve(kAxes);
  std::size_t begin = 0;
  while (begin <= order.size()) {
    const std::size_t end = std::min(order.find(',', begin), order.size());
    const std::string_view name = order.substr(begin, end - begin);
    const Axis* const axis = find_axis(name);
    if (axis == nullptr || std::any_of(all.begin(), all.end(),
                                       [&](const AxisSize& each) { return each.axis == *axis; })) {
      break;
    }
    all.push_back({*axis, axes.size(*axis)});
    begin = end + 1;
  }
  // Replicas are farther apart than the ranks that share one, unless the order says otherwise.
  const auto at = [&](Axis axis) {
    return std::find_if(all.begin(), all.end(),
                        [&](const AxisSize& each) { return each.axis == axis; });
  };
  if (at(Axis::dp_shard) != all.end() && at(Axis::dp_replicate) == all.end()) {
    all.insert(at(Axis::dp_shard) + 1, {Axis::dp_replicate, axes.size(Axis::dp_replicate)});
  }
  if (all.size() != kAxes || begin <= order.size()) {
    throw UsageError(str("got ", quote(order),
                         ", wanted dp, tp and pp once each, innermost first, such as ",
                         kUsualOrder));
  }
  return all;
}

std::vector<AxisSize> axis_order(const Question& q) { return in_order(q.order, q.axes); }

Places places_on(const Topology& topology, const std::vector<AxisSize>& order) {
  Places result;
  result.topology = topology;
  for (const Axis axis : kAllAxes) result.along[axis] = axis_place(topology, order, axis);
  result.hop = neighbour_place(topology, order, Axis::pp);
  // As far apart as stages can be, and no more of them at work than in a hop.
  result.tied = result.hop;
  result.tied.span = result.along[Axis::pp].span;
  return result;
}

Places places(const Question& q) {
  return places_on(q.hardware.topology(q.per_node), axis_order(q));
}

std::vector<int> replica_counts(const Question& q) {
  std::int64_t inner = 1;  // ranks between neighbors along dp
  for (const AxisSize& each : axis_order(q)) {
    if (each.axis == Axis::dp_shard) break;
    if (each.axis != Axis::dp_replicate) inner *= each.size;
  }
  std::vector<int> all;
  if (inner >= q.per_node || q.per_node % inner != 0) return all;
  for (std::int64_t shards = q.per_node / inner; shards < q.dp(); shards *= 2) {
    if (q.dp() % shards == 0) all.push_back(static_cast<int>(q.dp() / shards));
  }
  return all;
}

// [Note: collectives]: what a ring sends from a rank leaves the node once for each of its groups.
double dp_bytes_out_of_node(const Places& places, const PerAxis<double>& sent) {
  double bytes = 0;
  for (const Axis axis : {Axis::dp_shard, Axis::dp_replicate}) {
    const GroupPlace& place = places.along[axis];
    if (place.nodes() > 1) bytes += sent[axis] * places.topology.per_node / place.in_node;
  }
  return bytes;
}

}  // namespace tessera::planner
