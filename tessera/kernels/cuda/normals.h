#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/core/param_spec.h"
#include "tessera/kernels/cuda/cuda.h"

namespace tessera::kernels::cuda {

// Philox::normal of core/philox.h on a GPU. out[i], element begin + i of a rank's shard of a
// parameter, is deviation · normal(its index in the whole parameter) + mean, or 0 if it is in no
// run. Computed in fp64 as on the host; only differences in the last digit of log, sin and cos can
// show: about once in a million numbers, in the last digit.
struct Normals {
  std::uint64_t seed = 0, stream = 0;
  float deviation = 0, mean = 0;
  const Run* runs = nullptr;  // device memory, ordered by local offset
  std::size_t run_count = 0;
  std::int64_t begin = 0, count = 0;
};
void fill_normals(const Normals& args, float* out, Stream stream);

}  // namespace tessera::kernels::cuda
