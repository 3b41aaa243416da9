#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/backend.h"

namespace tessera::comm {

// Runs `body` once per rank, each on a thread of this process, over a shm group named "world", and
// returns when all have ended. If some throw, rethrows the cause rather than its consequences: the
// first exception that is not a PeerError, else the first.
void run_threads(int ranks, const std::function<void(std::shared_ptr<Backend>)>& body,
                 GroupOptions options = {});

}  // namespace tessera::comm
