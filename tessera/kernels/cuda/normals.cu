#include "tessera/kernels/cuda/normals.h"

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/philox.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int kNormalThreads = 256;
constexpr unsigned kNormalBlocks = 1u << 16;

__device__ __forceinline__ float normal(const Normals& how, std::uint64_t number) {
  const std::uint64_t pair = number / 2;
  std::uint32_t words[4];
  philox_block(static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32), how.stream,
               how.seed, words);
  constexpr double pi = 3.14159265358979323846;
  const double radius = sqrt(-2.0 * log((words[0] + 0.5) * 0x1p-32));
  const double angle = 2.0 * pi * ((words[1] + 0.5) * 0x1p-32);
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  return static_cast<float>(radius * (number % 2 == 0 ? cosine : sine));
}

__global__ void __launch_bounds__(kNormalThreads) fill(const Normals how, float* out) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kNormalThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kNormalThreads + threadIdx.x; i < how.count;
       i += stride) {
    const std::int64_t at = how.begin + i;
    // The first run that ends behind it.
    std::size_t low = 0, high = how.run_count;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      const Run& run = how.runs[middle];
      if (run.local + run.count <= at) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    float value = 0;
    if (low < how.run_count && how.runs[low].local <= at) {
      const std::int64_t number = how.runs[low].whole + (at - how.runs[low].local);
      value = how.mean;
      if (how.deviation != 0) {
        value = __fmul_rn(how.deviation, normal(how, static_cast<std::uint64_t>(number)));
        value = __fadd_rn(value, how.mean);
      }
    }
    out[i] = value;
  }
}

}  // namespace

void fill_normals(const Normals& how, float* out, Stream stream) {
  if (how.count == 0) return;
  const std::size_t blocks = divide_up(static_cast<std::size_t>(how.count), kNormalThreads);
  const unsigned grid = blocks < kNormalBlocks ? static_cast<unsigned>(blocks) : kNormalBlocks;
  fill<<<grid, kNormalThreads, 0, native(stream)>>>(how, out);
  check_launch("fill_normals", how.run_count, static_cast<std::size_t>(how.count));
}

}  // namespace tessera::kernels::cuda
