#pragma once

#include <cstddef>

#include "tessera/core/dtype.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// to[i] = from[i], rounded to nearest if `to` is narrower. Fast if both are 16-byte aligned. ATen's
// copy between types moves one element at a time, at less than half of the memory bandwidth, and
// all gradients that are kept in fp32 are converted.
struct Conversion {
  DType from_type = DType::bf16, to_type = DType::f32;
  std::size_t count = 0;
  const void* from = nullptr;
  void* to = nullptr;
};
void convert(const Conversion& args, Stream stream);

}  // namespace tessera::kernels::cuda
