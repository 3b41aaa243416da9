#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::hierarchical {

// A hierarchical group, the backend that users call two-level: ranks on several hosts with the same
// number of ranks on each, one after another; shm inside a host, mpi between hosts. UsageError that
// names the layout if it is another. Collective over `members`, which are ranks of the job in the
// order of the new group and include the caller; `name` must be new in the job.
//
// A sub-group is hierarchical again, or plainly shm if it is on one host, or mpi if it has one rank
// on each; kind() says which.
std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers,
                                      std::shared_ptr<mpi::Runtime> runtime,
                                      std::vector<int> members, std::string name,
                                      GroupOptions options);

}  // namespace tessera::comm::hierarchical
