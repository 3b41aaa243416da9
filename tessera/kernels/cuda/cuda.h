#pragma once

#include <cstdint>

#include "tessera/core/dtype.h"

// [Note: kernels on a GPU] The same small interface as the CPU's: raw pointers and sizes, with a
// stream. Every pointer but those of structs that are passed by value is of device memory. Calls
// only put work on the stream: they never wait, allocate nothing on the device, and may be captured
// into a CUDA graph. nvcc compiles them where it is found, with the CUDA runtime linked statically,
// so that a program with kernels runs on machines without a GPU too. Without nvcc absent.cpp stands
// in for them, and built() says so.
//
// Elements are f32, bf16 or f16; everything is computed in fp32. Sums are added up in an order that
// depends on the sizes alone: the same input gives the same bits.
namespace tessera::kernels::cuda {

using Stream = void*;  // a cudaStream_t

// Are there kernels in this program?
bool built();

// Where to put a gradient: written, or added to what is there. Null: not wanted.
struct Sink {
  void* to = nullptr;
  DType type = DType::f32;
  bool add = false;
};

}  // namespace tessera::kernels::cuda
