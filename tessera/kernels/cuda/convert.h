#pragma once

#include <cstddef>

#include "tessera/core/dtype.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// to[i] = from[i], rounded to nearest where `to` is narrower. Quick where both are 16-byte aligned.
// The framework's own copy between types moves an element at a time, at less than half of what
// memory gives; gradients that are kept in fp32 all go through it.
struct Conversion {
  DType from_type = DType::bf16, to_type = DType::f32;
  std::size_t count = 0;
  const void* from = nullptr;
  void* to = nullptr;
};
void convert(const Conversion& how, Stream stream);

}  // namespace tessera::kernels::cuda
