#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

#ifdef __CUDACC__
#define TESSERA_ANYWHERE __host__ __device__
#else
#define TESSERA_ANYWHERE
#endif

namespace tessera::kernels {

// [Note: masks] Whether a value is dropped is a function of (seed, stream, row, column): word c % 4
// of Philox block (row · ceil(width / 4) + c / 4) is compared with a threshold. Any part of a
// matrix can therefore be masked independently, in forward and in backward.
struct Dropout {
  std::uint64_t seed = 0, stream = 0;
  double rate = 0;        // in [0, 1)
  std::size_t width = 0;  // columns of the whole row
};

// Multiplies x[0, n), which are columns [first, first + n) of `row`, by 0 or 1 / (1 - rate).
void drop(const Dropout& args, Type type, std::uint64_t row, std::size_t first, void* x,
          std::size_t n);

namespace reference {
void drop(const Dropout& args, Type type, std::uint64_t row, std::size_t first, void* x,
          std::size_t n);
}

// Arithmetic shared with the CUDA kernels.

// Values whose random word is below this threshold are dropped.
inline std::uint32_t dropout_threshold(double rate) {
  return static_cast<std::uint32_t>(rate * 4294967296.0);
}
inline float dropout_scale(double rate) { return static_cast<float>(1.0 / (1.0 - rate)); }

// Derives the stream of a sample from that of a layer. The streams of neighboring samples are
// unrelated (splitmix64).
TESSERA_ANYWHERE inline std::uint64_t stream_of_sample(std::uint64_t layer, std::uint64_t sample) {
  std::uint64_t x = layer + (sample + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

}  // namespace tessera::kernels

#undef TESSERA_ANYWHERE
