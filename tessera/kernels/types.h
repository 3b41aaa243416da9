#pragma once

#include <cstdint>

#include "tessera/core/dtype.h"

namespace tessera::kernels {

// What lies in memory: f32 or bf16. Everything is computed in fp32 (sums of squares in fp64).
using Type = DType;

}  // namespace tessera::kernels
