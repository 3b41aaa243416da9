#pragma once

#include <memory>
#include <string>

#include "tessera/comm/backend.h"

namespace tessera::comm::dry {

// A simulated group: rank `rank` of `ranks` without the others. Sizes are checked, traffic is
// counted and symmetric memory is really allocated, so a plan for N ranks can be measured on one;
// but nothing is received: an all_gather fills in this rank's shard only, a reduction has this
// rank's values only, and what recv gets is zero. With one rank nothing is missing, and every
// collective is the identity.
std::shared_ptr<Backend> make_backend(int rank, int ranks, std::string name);

}  // namespace tessera::comm::dry
