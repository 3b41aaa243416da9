#pragma once

#include <cstddef>

#include "tessera/kernels/cuda/cuda.h"

// What choosing an algorithm needs of the CUDA runtime.
namespace tessera::kernels::cuda {

bool has_gpu();
int current_device();  // of this thread
// Does what is put on the stream go into a graph instead of being run?
bool capturing(Stream stream);

// Memory for work on the stream. Null where there is none.
void* try_allocate(std::size_t bytes, Stream stream);
void release(void* memory, Stream stream) noexcept;

// How long the work on a stream between two points takes.
class Stopwatch {
 public:
  Stopwatch();
  ~Stopwatch();
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  void start(Stream stream);
  float stop(Stream stream);  // waits; milliseconds

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace tessera::kernels::cuda
