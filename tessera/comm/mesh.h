#pragma once

#include <map>
#include <memory>

#include "tessera/comm/group.h"
#include "tessera/core/axes.h"

namespace tessera::comm {

// Ranks of a job as a grid with the sizes of `axes`, in [Note: rank order], and the groups along
// its axes that contain this rank. Copies share the groups. Not thread-safe: group() may create
// one.
class Mesh {
 public:
  // Collective over `world`. Throws UsageError unless world.size() is the product of the axes.
  Mesh(Group world, Axes axes);

  const Group& world() const { return world_; }
  // Returns the group of the ranks that differ from this one along these axes only, ordered by
  // rank. An empty set, or axes of size 1, give a group of one. Groups along one axis exist from
  // the start. A flattened group of several is created on the first call with that set, which is
  // collective over `world`.
  const Group& group(AxisSet axes) const;
  // Returns the ranks of group(axes) that have the same experts as this rank, [Note: expert ranks].
  // Equal to group(axes) without expert parallelism. Collective on the first call, as group().
  const Group& expert_group(AxisSet axes) const;
  // Returns the ranks that train on different samples: all shards of all replicas.
  const Group& dp() const { return group(kDataAxes); }
  const Group& tp() const { return group(Axis::tp); }
  const Group& pp() const { return group(Axis::pp); }
  const Axes& axes() const { return axes_; }
  // Returns the coordinate of this rank.
  const Coordinate& coordinate() const { return coordinate_; }

 private:
  Group world_;
  Axes axes_;
  Coordinate coordinate_;
  struct Key {
    AxisSet axes;
    bool same_experts = false;
    auto operator<=>(const Key&) const = default;
  };
  const Group& find_or_make(const Key& key) const;
  std::shared_ptr<std::map<Key, Group>> groups_;
};

}  // namespace tessera::comm
