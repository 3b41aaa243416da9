#pragma once

#include <memory>
#include <vector>

#include "tessera/comm/peers.h"

namespace tessera::comm {

// The control plane of ranks that are threads of one process: one handle per rank. Memory is shared
// as it is (one mapping), so that a race detector sees every access. A handle that is destroyed
// has left; threads cannot die alone.
std::vector<std::shared_ptr<Peers>> make_local_peers(int ranks);

}  // namespace tessera::comm
