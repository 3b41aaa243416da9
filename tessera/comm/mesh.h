#pragma once

#include <array>
#include <string_view>

#include "tessera/comm/group.h"
#include "tessera/core/axes.h"

namespace tessera::comm {

// The job's ranks as a grid with the sizes of `axes`, in [Note: rank order], and the group along
// each axis through this rank. An axis of one rank has a group of one.
class Mesh {
 public:
  // Collective over `world`. Throws UsageError unless world.size() is the product of the axes.
  Mesh(Group world, Axes axes);

  const Group& world() const { return world_; }
  // Throws UsageError for a name that is no axis.
  const Group& group(std::string_view axis) const { return groups_[axis_index(axis)]; }
  const Group& dp() const { return group("dp"); }
  const Group& tp() const { return group("tp"); }
  const Group& pp() const { return group("pp"); }
  const Axes& axes() const { return axes_; }
  const Place& place() const { return place_; }

 private:
  Group world_;
  Axes axes_;
  Place place_;
  std::array<Group, kAxes> groups_;
};

}  // namespace tessera::comm
