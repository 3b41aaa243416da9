#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/backend.h"

namespace tessera::comm {

// Runs a collective on device tensors over a backend that moves host memory: through pinned
// buffers, in order with the current stream. The result is on the device when the Work is done.
// `attachments` may ask when it ran; the rest of it is filled in here.
Work submit_staged(Backend& backend, Collective what, const at::Tensor& out, const at::Tensor& in,
                   Attachments attachments = {});

}  // namespace tessera::comm
