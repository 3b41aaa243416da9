#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::shm {

// Creates a group of ranks on one host, which are processes or threads. Collective over `members`:
// ranks of the job, including the caller, in the order of the new group. `name` must be unique in
// the job.
std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, std::vector<int> members,
                                      std::string name, GroupOptions options);

}  // namespace tessera::comm::shm
