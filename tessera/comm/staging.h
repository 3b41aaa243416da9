#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/backend.h"

namespace tessera::comm {

// Runs a collective on device tensors over a backend for host memory, through pinned buffers and
// ordered with the current stream. The result is on the device when the Work is done. The caller
// may set `attachments.ran`; the other members are set here.
Work submit_staged(Backend& backend, Collective what, const at::Tensor& out, const at::Tensor& in,
                   Attachments attachments = {});

}  // namespace tessera::comm
