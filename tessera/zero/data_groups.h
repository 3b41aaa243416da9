#pragma once

#include <utility>

#include "tessera/comm/group.h"
#include "tessera/comm/mesh.h"

namespace tessera::zero {

// [Note: data groups] Ranks that train the same parameters on other data, and how they divide
// state. Stages 1 to 3 shard it over `shard`; the ranks of `replicate` own the same shard.
// Gradients are summed over `all` ranks: each of `shard` gets the sum of its shard inside the
// group, which is then added up over `replicate` ([Note: hybrid sums]). Divisors of the gradient,
// norms, losses and comparisons are of `all`. Without replicas `shard` is `all`, and `replicate` is
// one rank.
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
