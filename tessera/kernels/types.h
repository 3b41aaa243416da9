#pragma once

#include <cstdint>

#include "tessera/core/dtype.h"

namespace tessera::kernels {

// Element type in memory: f32 or bf16. All arithmetic is in fp32 (sums of squares in fp64).
using Type = DType;

}  // namespace tessera::kernels
