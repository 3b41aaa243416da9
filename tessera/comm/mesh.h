#pragma once

#include <array>
#include <string>

#include "tessera/comm/group.h"

namespace tessera::comm {

// The axes along which a job is cut: data, tensor and pipeline parallelism.
struct MeshShape {
  int dp = 1;
  int tp = 1;
  int pp = 1;

  int world() const { return dp * tp * pp; }
};

// Where a rank stands on each axis.
struct MeshPlace {
  int dp = 0;
  int tp = 0;
  int pp = 0;
};

// [Note: rank order] rank = (pp_index · dp + dp_index) · tp + tp_index: tensor-parallel peers are
// neighbours, so they share a host; data-parallel ones come next; pipeline stages are farthest
// apart, since they say least to each other.
MeshPlace place_of(int rank, const MeshShape& shape);
int rank_of(const MeshPlace& place, const MeshShape& shape);

// The job's ranks as a dp × tp × pp grid, and the group along each axis through this rank.
class Mesh {
 public:
  // Collective over `world`. Throws UsageError unless world.size() = dp · tp · pp.
  Mesh(Group world, MeshShape shape);

  const Group& world() const { return world_; }
  const Group& dp() const { return dp_; }
  const Group& tp() const { return tp_; }
  const Group& pp() const { return pp_; }
  const MeshShape& shape() const { return shape_; }
  const MeshPlace& place() const { return place_; }

 private:
  Group axis(int MeshShape::*length, int MeshPlace::*index, const char* name) const;

  Group world_;
  MeshShape shape_;
  MeshPlace place_;
  Group dp_, tp_, pp_;
};

}  // namespace tessera::comm
