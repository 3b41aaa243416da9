#include "tessera/comm/mesh.h"

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm {

MeshPlace place_of(int rank, const MeshShape& shape) {
  return {rank / shape.tp % shape.dp, rank % shape.tp, rank / shape.tp / shape.dp};
}

int rank_of(const MeshPlace& place, const MeshShape& shape) {
  return (place.pp * shape.dp + place.dp) * shape.tp + place.tp;
}

Mesh::Mesh(Group world, MeshShape shape) : world_(std::move(world)), shape_(shape) {
  if (shape.dp < 1 || shape.tp < 1 || shape.pp < 1 ||
      static_cast<long long>(shape.dp) * shape.tp * shape.pp != world_.size()) {
    throw UsageError(str("mesh dp ", shape.dp, " × tp ", shape.tp, " × pp ", shape.pp, " for ",
                         world_.size(),
                         " ranks: the product of the axes must be the number of "
                         "ranks, and each axis at least 1"));
  }
  place_ = place_of(world_.rank(), shape_);
  dp_ = axis(&MeshShape::dp, &MeshPlace::dp, "dp");
  tp_ = axis(&MeshShape::tp, &MeshPlace::tp, "tp");
  pp_ = axis(&MeshShape::pp, &MeshPlace::pp, "pp");
}

Group Mesh::axis(int MeshShape::*length, int MeshPlace::*index, const char* name) const {
  if (shape_.*length == 1) return Group();
  std::vector<int> ranks;
  MeshPlace at = place_;
  for (int i = 0; i < shape_.*length; ++i) {
    at.*index = i;
    ranks.push_back(rank_of(at, shape_));
  }
  return world_.subset(ranks, name);
}

}  // namespace tessera::comm
