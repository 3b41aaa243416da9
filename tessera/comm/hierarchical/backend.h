#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::hierarchical {

// Makes a group for the level between hosts.
using MakeInterHost =
    std::function<std::shared_ptr<Backend>(std::shared_ptr<Peers> peers, std::vector<int> members,
                                           std::string name, GroupOptions options)>;

// Creates a hierarchical group (backend two-level): shm inside a host, another backend between
// hosts. Every host must have the same number of ranks, with consecutive numbers; otherwise throws
// a UsageError that describes the layout. Collective over `members`: ranks of the job, including
// the caller, in the order of the new group. `name` must be unique in the job.
//
// A group or subgroup on one host uses shm, one with a single rank per host the backend between
// hosts, and all others are hierarchical; kind() returns which.
std::shared_ptr<Backend> make_backend(std::shared_ptr<Peers> peers, MakeInterHost make_inter_host,
                                      std::vector<int> members, std::string name,
                                      GroupOptions options);

}  // namespace tessera::comm::hierarchical
