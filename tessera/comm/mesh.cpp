#include "tessera/comm/mesh.h"

#include <string>
#include <utility>

#include "tessera/core/text.h"

namespace tessera::comm {

Mesh::Mesh(Group world, Axes axes)
    : world_(std::move(world)), axes_(axes), groups_(std::make_shared<std::map<AxisSet, Group>>()) {
  axes_.check_world(world_.size());
  coordinate_ = axes_.coordinate_of(world_.rank());
  for (const Axis axis : kAllAxes) group(axis);
}

const Group& Mesh::group(AxisSet axes) const {
  axes = axes_.wide(axes);  // so that equal groups are created once
  std::string label;
  for (const Axis axis : kAllAxes) {
    if (axes.contains(axis)) label += str(label.empty() ? "" : "_", axis_name(axis));
  }
  const auto found = groups_->find(axes);
  if (found != groups_->end()) return found->second;
  Group made;
  if (axes != AxisSet()) made = world_.partition(axes_.ranks_along(axes, coordinate_), label);
  return groups_->emplace(axes, std::move(made)).first->second;
}

}  // namespace tessera::comm
