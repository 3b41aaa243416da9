#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/comm/join_notice.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/store.h"

namespace tessera::comm {

struct PeersOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  // for all ranks to arrive
  std::string secret{};   // of the job; empty accepts any process
  std::string run{};      // distinguishes jobs that have the same secret
  std::string address{};  // numeric; listens here for ranks of other hosts, if there are any
  std::chrono::milliseconds notice = JoinNotice::kFirst;  // wait before missing ranks are reported
  // Key of the host of this rank. Ranks with equal keys pass memory to each other through Unix
  // sockets, the others use TCP. Empty selects host_key(); tests set it to simulate several hosts.
  std::string host{};
};

// Connects the control plane of ranks that are processes: connections along the [Note: control
// graph], and further ones when notes or memory are first sent to a rank. They are Unix sockets
// inside a host and TCP between hosts; addresses are exchanged through the store ([Note:
// contacts]). Collective over the job. Both ends of a connection prove that they have the job's
// secret; on a host they must also be processes of one user.
std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size,
                                     const PeersOptions& options = {});

}  // namespace tessera::comm
