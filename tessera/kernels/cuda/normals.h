#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/core/param_spec.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// The numbers of Philox::normal in core/philox.h, on a GPU: out[i], element begin + i of a rank's
// part of a parameter, is deviation · normal(its number in the whole parameter) + mean; 0 where it
// is in no run. Computed in fp64 as there, so only what the two logarithms, sines and cosines
// differ by in their last digit can show: once in some million numbers, in the last digit.
struct Normals {
  std::uint64_t seed = 0, stream = 0;
  float deviation = 0, mean = 0;
  const Run* runs = nullptr;  // on the device, in the order of their local places
  std::size_t run_count = 0;
  std::int64_t begin = 0, count = 0;
};
void fill_normals(const Normals& how, float* out, Stream stream);

}  // namespace tessera::kernels::cuda
