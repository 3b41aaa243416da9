#pragma once

#include <optional>
#include <string>

#include "tessera/comm/store_server.h"
#include "tessera/core/fd.h"
#include "tessera/process/launcher.h"

namespace tessera::process {

struct RendezvousOptions {
  std::string secret_file;  // "" makes a secret, for one node
  std::string interface;    // where node 0 listens; "" is what the master's address resolves to
};

// What a launcher holds for its ranks to find each other, until they have ended: the job's secret,
// the store (on node 0), and the port that it promises to torch.distributed.
//
// [Note: two stores] Ranks of Tessera meet at our own store, which lets nobody in without the
// secret; TESSERA_STORE names it. MASTER_ADDR and MASTER_PORT are for programs that join through
// torch.distributed's env://: there rank 0 itself hosts a store of c10d, at a port that nobody else
// is given meanwhile.
class Rendezvous {
 public:
  // Completes `launch`: secret, store, interface, master_port, and on node 0 on_failure: so this
  // stays until launch() has returned. With several nodes the store takes the port after the
  // master's. Throws UsageError when it cannot listen there.
  Rendezvous(LaunchOptions& launch, const RendezvousOptions& options);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

 private:
  Fd secret_;
  Fd reserved_;
  std::optional<comm::StoreServer> server_;
};

}  // namespace tessera::process
