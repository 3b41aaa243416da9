#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tessera/comm/store_server.h"
#include "tessera/core/fd.h"
#include "tessera/process/launcher.h"

namespace tessera::process {

// Options of Rendezvous.
struct RendezvousOptions {
  std::string secret_file;  // "" generates a secret; only for one node
  std::string interface;    // on which node 0 listens; "" derives it from master_addr
};

// Resources that a launcher holds while its ranks run so that they can find each other: the job's
// secret, the store (on node 0), and the port reserved for torch.distributed.
//
// [Note: two stores] Tessera's ranks meet at Tessera's own store, which accepts only clients with
// the secret; TESSERA_STORE holds its address. MASTER_ADDR and MASTER_PORT are for programs that
// join through torch.distributed's env://: there rank 0 hosts a c10d store, on a port that is
// reserved until then.
class Rendezvous {
 public:
  // Sets in `launch`: secret_fd, store, interface, master_port, and on node 0 on_failure and the
  // functions of `recovery`, so this object must outlive launch(). With several nodes the store
  // uses the port after master_port. Throws UsageError if it cannot listen there.
  Rendezvous(LaunchOptions& launch, const RendezvousOptions& options);
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

 private:
  class Reports;

  Fd secret_;
  Fd reserved_;
  std::shared_ptr<Reports> reports_;  // used by the thread of the server
  std::optional<comm::StoreServer> server_;
};

}  // namespace tessera::process
