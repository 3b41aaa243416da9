#pragma once

#include <cstddef>

#include "tessera/kernels/cuda/cuda.h"

// CUDA runtime functions used for choosing an algorithm.
namespace tessera::kernels::cuda {

bool has_gpu();
int current_device();  // device of this thread
// Returns 10 · major + minor version of this thread's device, such as 90.
int compute_capability();
// Returns whether work on the stream is being captured into a graph.
bool capturing(Stream stream);

// Allocates memory for work on the stream. Returns null if there is not enough.
void* try_allocate(std::size_t bytes, Stream stream);
// Frees it once the work on the stream has ended. Null is allowed.
void release(void* memory, Stream stream) noexcept;

// Measures the duration of the work on a stream between two points.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start(Stream stream);
  float stop(Stream stream);  // waits, returns milliseconds

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace tessera::kernels::cuda
