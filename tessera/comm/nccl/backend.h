#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::nccl {

// Whether GPUs and NCCL are here (NCCL is looked for when first asked for, so every build has this
// backend), and if not, why not.
bool available();
std::string why_not();
std::string version();  // "2.28.9", or ""
// Can ranks share a GPU? Since 2.30, where the user allows it (NCCL_MULTI_RANK_GPU_ENABLE=1; else
// NCCL refuses, and says so).
bool shares_gpus();

struct NcclOptions {
  // Reductions by an exchange of shards and our own sum in rank order instead of NCCL's: the same
  // bytes, and the same bits in every run and on every backend.
  bool deterministic = false;
  // [Note: agreement] in backend.cpp: calls that do not match are an error on every rank. Without
  // it they hang until the timeout or give garbage.
  enum class Check : std::uint8_t {
    never,
    new_calls,   // before a call that this group has not made yet
    every_call,  // before every call: Work::wait() then waits for all ranks to have made it
  };
  Check check = Check::new_calls;
};

// The ranks of `host`, each with its GPU `device`. `host` moves what lives in host memory, among it
// NCCL's own start-up; `peers` (null for one rank) watches over the others, because NCCL itself
// waits for a dead rank for ever. Collective over the group; if a rank cannot, all of them throw
// UsageError that says which and why.
std::shared_ptr<Backend> make_backend(std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers,
                                      int device, GroupOptions options, NcclOptions nccl = {});

}  // namespace tessera::comm::nccl
