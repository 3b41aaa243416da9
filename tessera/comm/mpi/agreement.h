#pragma once

#include "tessera/comm/liveness.h"
#include "tessera/comm/mpi/runtime.h"

namespace tessera::comm::mpi {

// The first of the tags of a new group; see [Note: tags] in wire.h. Collective over its members,
// who also make sure that they mean the same group: UsageError on all of them if they do not.
int agree_on_tags(const std::shared_ptr<Runtime>& runtime,
                  const std::shared_ptr<Liveness>& liveness, int rank);

}  // namespace tessera::comm::mpi
