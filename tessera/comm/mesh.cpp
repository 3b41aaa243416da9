#include "tessera/comm/mesh.h"

#include <string>
#include <utility>
#include <vector>

#include "tessera/core/text.h"

namespace tessera::comm {

Mesh::Mesh(Group world, Axes axes)
    : world_(std::move(world)), axes_(axes), groups_(std::make_shared<std::map<Key, Group>>()) {
  axes_.check_world(world_.size());
  coordinate_ = axes_.coordinate_of(world_.rank());
  for (const Axis axis : kAllAxes) group(axis);
}

const Group& Mesh::find_or_make(const Key& key) const {
  const auto found = groups_->find(key);
  if (found != groups_->end()) return found->second;
  std::string label;
  for (const Axis axis : kAllAxes) {
    if (key.axes.contains(axis)) label += str(label.empty() ? "" : "_", axis_name(axis));
  }
  if (key.same_experts) label += "_experts";
  Group made;
  if (key.axes != AxisSet()) {
    std::vector<int> ranks = axes_.ranks_along(key.axes, coordinate_);
    if (key.same_experts) ranks = axes_.same_experts(ranks, coordinate_);
    made = world_.partition(std::move(ranks), label);
  }
  return groups_->emplace(key, std::move(made)).first->second;
}

// wide() makes equal groups equal keys, so that they are created once.
const Group& Mesh::group(AxisSet axes) const { return find_or_make({axes_.wide(axes)}); }

const Group& Mesh::expert_group(AxisSet axes) const {
  axes = axes_.wide(axes);
  const bool shards = axes.without(kShardAxes) != axes;
  return find_or_make({axes, shards && axes_.size(Axis::ep) > 1});
}

}  // namespace tessera::comm
