#pragma once

#include <vector>

#include "tessera/comm/socket_peers.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// The connections with which connect_peers() begins, by rank; the own place stays empty.
struct PeerSockets {
  std::vector<Fd> sockets;  // they do not block
  std::vector<bool> same_host;
};

// Every rank connects to those before it and accepts those after it, and each connection is proved
// from both sides, see [Note: handshake]. A connection is complete before it is accepted, so no
// order of arrival can block.
PeerSockets connect_sockets(Store& store, int rank, int size, const PeersOptions& options);

}  // namespace tessera::comm
