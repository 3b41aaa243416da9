#include "tessera/planner/places.h"

#include <algorithm>
#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/core/svg.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::planner {
namespace {

constexpr int kDrawnNodes = 4, kDrawnDevices = 16;

std::string rate(double bytes_per_second) {
  return format_bytes(static_cast<std::int64_t>(bytes_per_second)) + "/s";
}

std::string link_words(const Link& link) {
  return str(rate(link.bandwidth), ", ", format_time(link.latency));
}

// Describes the placement of an axis and its bandwidth in a large all-gather.
std::string place_words(const Places& places, const GroupPlace& place) {
  const int nodes = place.nodes();
  std::string text =
      str(place.ranks, " ranks, ", nodes == 1 ? "all" : str(place.in_node), " in a node");
  if (nodes > 1 && place.crossing > 1)
    text += str(", ", place.crossing, " groups send between nodes at once");
  const CollectiveCost cost = collective_cost(places.topology, Collective::all_gather, 1e9, place);
  const double has =
      cost.far_bytes > 0
          ? std::min(cost.far_bandwidth,
                     place.in_node > 1 ? places.topology.inside.bandwidth : cost.far_bandwidth)
          : places.topology.inside.bandwidth;
  return text + str(": ", rate(has));
}

std::string hop_words(const Places& places) {
  const bool far = places.hop.nodes() > 1;
  const CollectiveCost cost = collective_cost(places.topology, Collective::send, 1e9, places.hop);
  return str("the next stage is on ", far ? "another node" : "the same node",
             far && places.hop.crossing > 1 ? str(", ", places.hop.crossing, " send at once") : "",
             ": ", rate(far ? cost.far_bandwidth : places.topology.inside.bandwidth));
}

// Returns the coordinate of a rank if ranks are numbered along the axes in this order.
Coordinate coordinate_in(const std::vector<AxisSize>& order, int rank) {
  Coordinate at;
  for (const AxisSize& axis : order) {
    at.set(axis.axis, rank % axis.size);
    rank /= axis.size;
  }
  return at;
}

// Returns "d0t1": the axes with more than one rank. Replicas are printed as r.
std::string coordinate_text(const Axes& axes, const Coordinate& at) {
  std::string out;
  for (const Axis axis : kPrintedAxes) {
    const std::string_view name = axis == Axis::dp_replicate ? "r" : axis_name(axis).substr(0, 1);
    if (axes.size(axis) > 1) out += str(name, at[axis]);
  }
  return out.empty() ? "0" : out;
}

int drawn_nodes(const RunConfig& q) {
  return std::min(kDrawnNodes, (q.world() + q.per_node - 1) / q.per_node);
}

}  // namespace

std::vector<AxisSize> in_order(std::string_view order, const Axes& axes) {
  std::vector<AxisSize> all;
  all.reserve(kAxes);
  std::size_t begin = 0;
  while (begin <= order.size()) {
    const std::size_t end = std::min(order.find(',', begin), order.size());
    const std::string_view name = order.substr(begin, end - begin);
    const Axis* const axis = find_axis(name);
    if (axis == nullptr || !multiplies_ranks(*axis) ||
        std::any_of(all.begin(), all.end(),
                    [&](const AxisSize& each) { return each.axis == *axis; })) {
      break;
    }
    all.push_back({*axis, axes.size(*axis)});
    begin = end + 1;
  }
  const auto at = [&](Axis axis) {
    return std::find_if(all.begin(), all.end(),
                        [&](const AxisSize& each) { return each.axis == axis; });
  };
  const auto add_outside = [&](Axis inner, Axis axis) {
    if (at(inner) == all.end() || at(axis) != all.end()) return;
    all.insert(at(inner) + 1, {axis, axes.size(axis)});
  };
  // The ranks that share a sequence, and those of one replica, are close together.
  add_outside(Axis::tp, Axis::cp);
  add_outside(Axis::dp_shard, Axis::dp_replicate);
  const auto ordered = static_cast<std::size_t>(AxisSet::all().count());
  if (all.size() != ordered || begin <= order.size()) {
    throw UsageError(str("got ", quote(order),
                         "; must list dp, tp and pp once each, innermost first, such as ",
                         kUsualOrder));
  }
  return all;
}

std::vector<AxisSize> axis_order(const RunConfig& q) { return in_order(q.order, q.axes); }

// Returns the order with each axis of kShardAxes divided into the ranks of a block of `ep`
// neighbors, and the blocks. cp is the inner one: [Note: expert ranks]. Parts of blocks are listed
// as ep, or as tp if they are the outer one; all other axes as pp.
static std::vector<AxisSize> divided_by_experts(const std::vector<AxisSize>& order, int ep) {
  PerAxis<int> inside{1};
  int left = ep;
  for (const Axis axis : kShardAxes) {
    for (const AxisSize& each : order) {
      if (each.axis == axis) inside[axis] = std::gcd(left, std::max(1, each.size));
    }
    left /= inside[axis];
  }
  std::vector<AxisSize> divided;
  for (const AxisSize& each : order) {
    if (!kShardAxes.contains(each.axis)) {
      divided.push_back({Axis::pp, each.size});
      continue;
    }
    const int part = inside[each.axis];
    divided.push_back({each.axis == Axis::cp ? Axis::ep : Axis::tp, part});
    divided.push_back({each.axis, std::max(1, each.size) / part});
  }
  return divided;
}

Places places_on(const Topology& topology, const std::vector<AxisSize>& order, int ep) {
  Places result;
  result.topology = topology;
  for (const Axis axis : kAllAxes) result.along[axis] = axis_place(topology, order, axis);
  if (ep > 1) {
    const std::vector<AxisSize> divided = divided_by_experts(order, ep);
    result.along[Axis::ep] = group_place(topology, divided, {Axis::ep, Axis::tp});
    result.along[Axis::ep].ranks = ep;
    result.expert_shard = group_place(topology, divided, kShardAxes);
  }
  result.shard = group_place(topology, order, kShardAxes);
  if (ep == 1) result.expert_shard = result.shard;
  result.hop = neighbor_place(topology, order, Axis::pp);
  // The ends span the whole pipeline, but no more devices send at the same time than in a hop.
  result.tied = result.hop;
  result.tied.span = result.along[Axis::pp].span;
  return result;
}

Places places(const RunConfig& q) {
  return places_on(q.hardware.topology(q.per_node), axis_order(q), q.ep());
}

std::vector<int> replica_counts(const RunConfig& q) {
  std::int64_t inner = 1;  // rank distance between neighbors along dp
  for (const AxisSize& each : axis_order(q)) {
    if (each.axis == Axis::dp_shard) break;
    if (each.axis != Axis::dp_replicate) inner *= each.size;
  }
  const std::int64_t ranks = q.axes.ranks(kDataAxes);
  std::vector<int> all;
  if (inner >= q.per_node || q.per_node % inner != 0) return all;
  for (std::int64_t shards = q.per_node / inner; shards < ranks; shards *= 2) {
    if (ranks % shards == 0) all.push_back(static_cast<int>(ranks / shards));
  }
  return all;
}

std::vector<int> expert_rank_counts(const ModelShape& model, const Axes& mesh) {
  std::vector<int> all = {1};
  const std::int64_t most = std::min<std::int64_t>(model.experts.count, mesh.shards());
  for (int ep = 2; ep <= most; ++ep) {
    if (model.experts.count % ep == 0 && mesh.shards() % ep == 0) all.push_back(ep);
  }
  return all;
}

// [Note: collectives]: the bytes that a ring sends per rank leave the node once for each group.
double dp_bytes_out_of_node(const Places& places, const PerAxis<double>& sent) {
  double bytes = 0;
  for (const Axis axis : kDataAxes) {
    const GroupPlace& place = axis == Axis::dp_shard ? places.shard : places.along[axis];
    if (place.nodes() > 1) bytes += sent[axis] * places.topology.per_node / place.in_node;
  }
  return bytes;
}

std::string topology_text(const RunConfig& q) {
  const Places on = places(q);
  const Topology& t = on.topology;
  std::string text =
      str("Topology  ", q.nodes, q.nodes == 1 ? " node of " : " nodes of ", t.per_node,
          t.per_node == 1 ? " device" : " devices", ", ranks in the order ", q.order,
          "\n  inside   ", t.kind, ", ", link_words(t.inside), " of each device\n  between  ",
          t.nics, t.nics == 1 ? " adapter of " : " adapters of ", link_words(t.nic),
          "; a node sends ", rate(t.out_of_node()), "\n");
  for (const SwitchLevel& level : t.switches) {
    text += str("  switch   over ", level.nodes, " nodes, oversubscribed ", level.oversubscription,
                " : 1\n");
  }
  for (const Axis axis : kAllAxes) {
    if (q.axes.size(axis) == 1) continue;
    std::string title(axis_title(axis));
    title.resize(9, ' ');
    text +=
        str("  ", title, axis == Axis::pp ? hop_words(on) : place_words(on, on.along[axis]), "\n");
  }
  if (q.ep() > 1) {
    text += str("  experts  ", place_words(on, on.expert_shard), ", with the same experts\n");
  }
  if (q.cp() > 1 && q.axes.size(Axis::dp_shard) > 1) {
    text += str("  state    ", place_words(on, on.shard), ", along cp and dp together\n");
  }
  const std::vector<AxisSize> order = axis_order(q);
  const int nodes = drawn_nodes(q), devices = std::min(t.per_node, kDrawnDevices);
  for (int n = 0; n < nodes; ++n) {
    text += str("  node ", n, "  ");
    for (int d = 0; d < devices && n * t.per_node + d < q.world(); ++d) {
      text += str("[", coordinate_text(q.axes, coordinate_in(order, n * t.per_node + d)), "]");
    }
    text += devices < t.per_node ? " …\n" : "\n";
  }
  if (q.world() > nodes * t.per_node) text += "  …\n";
  return text;
}

std::string topology_svg(const RunConfig& q) {
  constexpr double kBox = 64, kGap = 6, kLeft = 90, kTop = 60, kRow = 92;
  const Places on = places(q);
  const Topology& t = on.topology;
  const std::vector<AxisSize> order = axis_order(q);
  const int nodes = drawn_nodes(q), devices = std::min(t.per_node, kDrawnDevices);
  const double width = kLeft + devices * (kBox + kGap) + 190;
  Svg svg(std::max(620.0, width), kTop + nodes * kRow + 60,
          str(q.world(), " × ", q.hardware.name, ", ", q.axes.words(" · "), ", order ", q.order));
  const double trunk = kLeft + devices * (kBox + kGap) + 30;
  for (int n = 0; n < nodes; ++n) {
    const double y = kTop + n * kRow;
    svg.text(20, y + 28, str("node ", n));
    for (int d = 0; d < devices && n * t.per_node + d < q.world(); ++d) {
      const int rank = n * t.per_node + d;
      const Coordinate at = coordinate_in(order, rank);
      const double x = kLeft + d * (kBox + kGap);
      const char* const palette[] = {colors::kForward, colors::kParams, colors::kActivations,
                                     colors::kGrads};
      svg.box(x, y, kBox, 44,
              palette[q.axes.index(q.pipelined() ? kLayerAxes : Axis::dp_shard, at) % 4],
              str("rank ", rank));
      svg.text(x + kBox / 2, y + 27, coordinate_text(q.axes, at), Svg::Anchor::middle);
      svg.line(x + kBox / 2, y + 44, x + kBox / 2, y + 58, colors::kStep);
    }
    svg.line(kLeft + kBox / 2, y + 58, trunk, y + 58, colors::kStep);
    svg.line(trunk, y + 58, trunk, kTop + nodes * kRow, colors::kLimit);
    if (n == 0) {
      svg.text(kLeft, y + 76, str(t.kind, " ", rate(t.inside.bandwidth)));
      svg.text(trunk + 8, y + 62, str(t.nics, " × ", rate(t.nic.bandwidth)));
    }
  }
  svg.text(20, kTop + nodes * kRow + 36,
           q.world() > nodes * t.per_node ? str("… ", q.nodes, " nodes in all") : "");
  return svg.finish();
}

}  // namespace tessera::planner
