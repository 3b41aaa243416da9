#include "tessera/kernels/cuda/normals.h"

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/philox.cuh"

namespace tessera::kernels::cuda {
namespace {

constexpr int kNormalThreads = 256;
constexpr unsigned kNormalBlocks = 1u << 16;

__device__ __forceinline__ float normal(const Normals& args, std::uint64_t number) {
  const std::uint64_t pair = number / 2;
  std::uint32_t words[4];
  philox_block(static_cast<std::uint32_t>(pair), static_cast<std::uint32_t>(pair >> 32),
               args.stream, args.seed, words);
  constexpr double pi = 3.14159265358979323846;
  const double radius = sqrt(-2.0 * log((words[0] + 0.5) * 0x1p-32));
  const double angle = 2.0 * pi * ((words[1] + 0.5) * 0x1p-32);
  double sine, cosine;
  sincos(angle, &sine, &cosine);
  return static_cast<float>(radius * (number % 2 == 0 ? cosine : sine));
}

__global__ void __launch_bounds__(kNormalThreads) fill(const Normals args, float* out) {
  const std::int64_t stride = std::int64_t{gridDim.x} * kNormalThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kNormalThreads + threadIdx.x; i < args.count;
       i += stride) {
    const std::int64_t at = args.begin + i;
    // Finds the first run that ends after `at`.
    std::size_t low = 0, high = args.run_count;
    while (low < high) {
      const std::size_t middle = (low + high) / 2;
      const Run& run = args.runs[middle];
      if (run.local + run.count <= at) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    float value = 0;
    if (low < args.run_count && args.runs[low].local <= at) {
      const std::int64_t number = args.runs[low].whole + (at - args.runs[low].local);
      value = args.mean;
      if (args.deviation != 0) {
        value = __fmul_rn(args.deviation, normal(args, static_cast<std::uint64_t>(number)));
        value = __fadd_rn(value, args.mean);
      }
    }
    out[i] = value;
  }
}

}  // namespace

void fill_normals(const Normals& args, float* out, Stream stream) {
  if (args.count == 0) return;
  const std::size_t blocks = divide_up(static_cast<std::size_t>(args.count), kNormalThreads);
  const unsigned grid = blocks < kNormalBlocks ? static_cast<unsigned>(blocks) : kNormalBlocks;
  fill<<<grid, kNormalThreads, 0, native(stream)>>>(args, out);
  check_launch("fill_normals", args.run_count, static_cast<std::size_t>(args.count));
}

}  // namespace tessera::kernels::cuda
