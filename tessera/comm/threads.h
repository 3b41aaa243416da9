#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/backend.h"

namespace tessera::comm {

// Runs `body` once per rank, each on its own thread of this process, with a shm group named
// "world". Returns when all have ended. If some throw, rethrows the cause rather than its
// consequences: the first exception that is not a PeerError, or if there is none, the first
// PeerError.
void run_threads(int ranks, const std::function<void(std::shared_ptr<Backend>)>& body,
                 GroupOptions options = {});

}  // namespace tessera::comm
