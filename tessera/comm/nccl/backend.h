#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm::nccl {

// Returns whether this process has GPUs and NCCL. NCCL is loaded by the first call.
bool available();
std::string why_not();  // reason why not; "" if it is available
std::string version();  // "2.28.9"; "" if NCCL is not loaded
// Returns whether this NCCL lets ranks share a GPU (2.30 or later). The user must also set
// NCCL_MULTI_RANK_GPU_ENABLE=1; otherwise NCCL reports an error.
bool shares_gpus();

struct NcclOptions {
  // Reduces by an exchange of shards and Tessera's own sum in rank order, instead of NCCL's
  // reduction. Sends the same number of bytes and gives the same bits in every run and on every
  // backend.
  bool deterministic = false;
  // Selects the calls that ranks compare before they launch them ([Note: agreement] in
  // backend.cpp). Calls that do not match are then an error on every rank; without the check they
  // hang until the timeout or return garbage.
  enum class Check : std::uint8_t {
    never,
    new_calls,   // before a call that this group has not made yet
    every_call,  // before every call: Work::wait() then waits until all ranks have made it
  };
  Check check = Check::new_calls;
};

// Creates a group of the ranks of `host`, each with its GPU `device`. `host` transfers host memory,
// including the data for NCCL's startup. `peers` (null for one rank) detects dead ranks, because
// NCCL itself waits for them forever. Collective over the group. If one rank cannot use NCCL, all
// throw a UsageError with that rank and the reason.
std::shared_ptr<Backend> make_backend(std::shared_ptr<Backend> host, std::shared_ptr<Peers> peers,
                                      int device, GroupOptions options, NcclOptions nccl = {});

}  // namespace tessera::comm::nccl
