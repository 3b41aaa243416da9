#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "tessera/comm/dtype.h"

namespace tessera::comm::nccl {

// out = op over the sources, in their submission, with exactly the bits of [Note: the same bits
// everywhere] in reduce.h, by ATen operations on the current stream of any device. `divisor` is
// that of an average, else 1. All are contiguous, of one type and size; `out` may be a source.
void reduce_in_order(const at::Tensor& out, const std::vector<at::Tensor>& sources, ReduceOp op,
                     std::int64_t divisor);

}  // namespace tessera::comm::nccl
