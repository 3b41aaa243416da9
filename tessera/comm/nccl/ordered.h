#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/comm/call.h"
#include "tessera/comm/dtype.h"

namespace tessera::comm::nccl {

// Reduces the sources, in their order, to `out`, with exactly the bits of [Note: the same bits
// everywhere] in reduce.h. Uses ATen operations on the current stream of any device. `divisor` is
// that of an average, otherwise 1. All tensors are contiguous and have the same type and size;
// `out` may be a source.
void reduce_in_order(const at::Tensor& out, const std::vector<at::Tensor>& sources, ReduceOp op,
                     std::int64_t divisor);

}  // namespace tessera::comm::nccl
