#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "tessera/comm/backend.h"

namespace tessera::comm::dry {

// The same simulated group for tensors on a GPU, over that for the host. Its calls put copies on
// the current stream and never wait, so that a CUDA graph can hold them. What other ranks would
// send is made up from what this rank has, since computation goes on with it: an all_gather fills
// in this rank's shard for every rank, and what is received is zero.
std::shared_ptr<Backend> make_device_backend(std::shared_ptr<Backend> host, c10::Device device);

}  // namespace tessera::comm::dry
