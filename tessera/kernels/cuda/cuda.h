#pragma once

#include <cstdint>

#include "tessera/core/dtype.h"

// [Note: kernels on a GPU] The interface matches the CPU kernels: raw pointers and sizes, plus a
// stream. Pointers are to device memory unless stated otherwise. Calls only enqueue work on the
// stream: they never wait, never allocate device memory, and can be captured into a CUDA graph.
// nvcc compiles the kernels if it is found, with the CUDA runtime linked statically, so that the
// program also runs on machines without a GPU. Without nvcc, absent.cpp replaces them, and built()
// returns false.
//
// Elements are f32, bf16 or f16; all arithmetic is in fp32. The order of additions in sums depends
// only on the sizes: the same input gives the same bits.
namespace tessera::kernels::cuda {

using Stream = void*;  // a cudaStream_t

// Returns whether this program contains the CUDA kernels.
bool built();

// Destination of a gradient. `add` accumulates instead of overwriting. `to` null: not computed.
struct Sink {
  void* to = nullptr;
  DType type = DType::f32;
  bool add = false;
};

}  // namespace tessera::kernels::cuda
