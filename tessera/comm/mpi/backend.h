#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::mpi {

// A group of ranks on any hosts, which are processes started by mpirun or srun. Collective over
// `members`, which are ranks of the job in the order of the new group and include the caller;
// `name` must be new in the job.
std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers,
                                      std::shared_ptr<Runtime> runtime, std::vector<int> members,
                                      std::string name, GroupOptions options);

}  // namespace tessera::comm::mpi
