#pragma once

#include <chrono>
#include <memory>

#include "tessera/comm/peers.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

struct PeersOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for all ranks to arrive
};

// The control plane of ranks that are processes: a connection between every two of them, through
// Unix sockets inside a host and TCP between hosts, found through the store. Collective over the
// job. Connections prove themselves by a secret that travels through the store.
std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size, PeersOptions options = {});

}  // namespace tessera::comm
