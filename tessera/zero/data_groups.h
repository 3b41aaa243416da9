#pragma once

#include <utility>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"

namespace tessera::zero {

// [Note: data groups] Groups of ranks that train the same parameters on different data. Stages 1 to
// 3 shard state over `shard`; the ranks of `replicate` own the same shard. Gradients are summed
// over `all`: each rank of `shard` gets the sum of its shard within that group, which is then
// summed over `replicate` ([Note: hybrid sums]). Gradient divisors, norms, losses and comparisons
// of ranks use `all`. Without replicas, `shard` is `all` and `replicate` has one rank.
struct DataGroups {
  // Every rank of `group` owns a shard.
  explicit DataGroups(comm::Group group) : all(std::move(group)), shard(all) {}
  // The data-parallel axes of a mesh. Collective over its world if it has replicas.
  explicit DataGroups(const comm::Mesh& mesh)
      : all(mesh.dp()),
        shard(mesh.group(Axis::dp_shard)),
        replicate(mesh.group(Axis::dp_replicate)) {}

  // Returns true if there is more than one replica.
  bool hybrid() const { return replicate.size() > 1; }

  comm::Group all;
  comm::Group shard;
  comm::Group replicate = {};
};

}  // namespace tessera::zero
