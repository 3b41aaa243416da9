#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tessera/comm/call.h"
#include "tessera/comm/group.h"

namespace tessera::comm {

struct Generation;

// Options of init(). The defaults suit every launcher.
struct InitOptions {
  // "auto", "shm", "two-level", "tcp", "nccl" or "dry". "auto" selects shm on one host and
  // two-level on several; with `cuda` it selects nccl if every rank has its own GPU. "dry" runs
  // this process alone as rank `dry_rank` of `dry_ranks` (see dry/backend.h).
  std::string backend = "auto";
  int dry_ranks = 1;
  int dry_rank = 0;
  bool cuda = false;  // the tensors will be on GPUs
  GroupOptions comm;
  bool deterministic = false;  // nccl: sum in rank order, as the other backends do
  // Name or address of the network interface at which to listen for other hosts. "" uses
  // TESSERA_INTERFACE, or if that is not set, the interface that routes to the store.
  std::string interface;
  std::chrono::milliseconds join_timeout = std::chrono::minutes(5);  // for all ranks to arrive
  // Joins only its members, which include this process: [Note: generations] in generation.h. Null:
  // all processes of the job are members.
  std::shared_ptr<const Generation> generation = nullptr;
};

// Joins the job that this process belongs to and returns the group of all its ranks; a process
// without a launcher gets a group of one. Collective over the job. When the last handle of the
// group is destroyed, the other ranks are notified that this one left.
Group init(const InitOptions& options = {});

}  // namespace tessera::comm
