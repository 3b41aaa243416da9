// Code shared by the forward and backward norms.
#pragma once

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/layers.h"

namespace tessera::kernels::cuda {

// Threads of a block that processes a row of any length.
constexpr int kAnyRow = 256;

// Calls f(column) for the columns of this thread.
template <class F>
__device__ __forceinline__ void along_row(std::size_t cols, F&& f) {
  for (std::size_t column = threadIdx.x; column < cols; column += kAnyRow) f(column);
}

inline Columnwise weight_of(const Norm& in) { return {in.weight, in.weight_type}; }
inline Columnwise bias_of(const Norm& in) { return {in.bias, in.weight_type}; }

}  // namespace tessera::kernels::cuda
