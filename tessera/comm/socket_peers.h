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
  std::string secret{};   // of the job; without one anybody may come in
  std::string run{};      // tells this job from others with the same secret
  std::string address{};  // numeric: where to listen for ranks of other hosts, if there are any
  std::chrono::milliseconds notice = JoinNotice::kFirst;  // of waiting, before it is reported
};

// The control plane of ranks that are processes: a connection between every two of them, through
// Unix sockets inside a host and TCP between hosts, found through the store. Collective over the
// job. Both ends of a connection prove that they know the job's secret; on a host they must also be
// processes of one user.
std::shared_ptr<Peers> connect_peers(Store& store, int rank, int size,
                                     const PeersOptions& options = {});

}  // namespace tessera::comm
