#pragma once

#include <memory>
#include <vector>

#include "tessera/comm/peers.h"

namespace tessera::comm {

// Creates the control plane of ranks that are threads of one process: one handle per rank. Memory
// is mapped once and used by all, so that a race detector sees every access. Destroying a handle
// means that the rank has left; a single thread cannot die.
std::vector<std::shared_ptr<Peers>> make_local_peers(int ranks);

}  // namespace tessera::comm
