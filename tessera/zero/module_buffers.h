#pragma once

#include <torch/nn/module.h>

#include "tessera/comm/group.h"
#include "tessera/zero/buffers.h"

namespace tessera::zero {

// Collective. Broadcasts the buffers of the module (running means) from rank 0, in one call per
// type.
void broadcast_module_buffers(const torch::nn::Module& module, const comm::Group& group,
                              Stopwatch& waiting);

}  // namespace tessera::zero
