#include "tessera/comm/mesh.h"

#include <string>
#include <utility>

namespace tessera::comm {

Mesh::Mesh(Group world, Axes axes) : world_(std::move(world)), axes_(axes) {
  axes_.check_world(world_.size());
  place_ = axes_.place_of(world_.rank());
  for (const Axis& axis : axes_.list()) {
    if (axis.size == 1) continue;
    groups_[axis_index(axis.name)] =
        world_.subset(axes_.ranks_along(axis.name, place_), std::string(axis.name));
  }
}

}  // namespace tessera::comm
