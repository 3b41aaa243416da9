#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "tessera/comm/backend.h"

namespace tessera::comm::dry {

// Creates a simulated group for tensors on a GPU; `host` is the same group for host tensors. Calls
// enqueue copies on the current stream and never wait, so a CUDA graph can capture them. Data of
// other ranks is filled in, because computation continues with it: an all_gather repeats this
// rank's shard for every rank, and recv returns zeros.
std::shared_ptr<Backend> make_device_backend(std::shared_ptr<Backend> host, c10::Device device);

}  // namespace tessera::comm::dry
