#pragma once

#include <memory>
#include <string>

#include "tessera/comm/backend.h"

namespace tessera::comm::dry {

// Creates a simulated group: rank `rank` of `ranks` without the other ranks. Sizes are checked,
// traffic is counted and symmetric memory is allocated, so a plan for N ranks can be measured on
// one. Nothing is received: an all_gather writes only this rank's shard, a reduction has only this
// rank's values, and recv returns zeros. With one rank the results are exact: every collective is
// the identity.
std::shared_ptr<Backend> make_backend(int rank, int ranks, std::string name);

}  // namespace tessera::comm::dry
