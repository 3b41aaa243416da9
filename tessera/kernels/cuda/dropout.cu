#include "tessera/kernels/cuda/dropout.h"

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/philox.cuh"
#include "tessera/kernels/dropout_rule.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kDropoutThreads = 256;
constexpr unsigned kDropoutBlocks = 1u << 16;

// How many blocks of Philox, of four columns each, lie over a row's own columns.
__host__ __device__ inline std::size_t blocks_across(const Dropout& how) {
  return (how.first_column + how.cols + 3) / 4 - how.first_column / 4;
}

// A thread has four columns at a time: the words of one block of Philox.
template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    dropout_kernel(const Dropout how, std::uint32_t least, float scale, const T* x, T* y) {
  const std::size_t across = blocks_across(how), all = how.rows * across;
  const std::size_t whole = ((how.width == 0 ? how.cols : how.width) + 3) / 4;
  const std::size_t stride = std::size_t{gridDim.x} * kDropoutThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kDropoutThreads + threadIdx.x; i < all;
       i += stride) {
    const std::size_t row = i / across, quad = how.first_column / 4 + i % across;
    const std::uint64_t sample = how.first_sample + row / how.rows_per_sample;
    const std::uint64_t block =
        (how.first_row + row % how.rows_per_sample) * static_cast<std::uint64_t>(whole) + quad;
    std::uint32_t words[4];
    philox_block(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 stream_of_sample(how.stream, sample), how.seed, words);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::size_t column = 4 * quad + k;
      if (column < how.first_column) continue;
      if (column >= how.first_column + how.cols) break;
      const std::size_t at = row * how.cols + column - how.first_column;
      y[at] = narrow<T>(words[k] >= least ? wide(x[at]) * scale : 0.0f);
    }
  }
}

}  // namespace

void dropout(const Dropout& how, const void* x, void* y, Stream stream) {
  const std::size_t all = how.cols == 0 ? 0 : how.rows * blocks_across(how);
  if (all == 0) return;
  if (!(how.rate >= 0) || how.rate >= 1 || how.rows_per_sample == 0) {
    throw UsageError("dropout: got rate " + std::to_string(how.rate) + " and " +
                     std::to_string(how.rows_per_sample) +
                     " rows in a sample; wanted 0 <= rate < 1, and at least one row");
  }
  const std::size_t blocks = divide_up(all, kDropoutThreads);
  const unsigned grid = blocks < kDropoutBlocks ? static_cast<unsigned>(blocks) : kDropoutBlocks;
  with_type(how.type, "dropout", [&]<class T>() {
    dropout_kernel<T><<<grid, kDropoutThreads, 0, native(stream)>>>(
        how, dropout_threshold(how.rate), dropout_scale(how.rate), static_cast<const T*>(x),
        static_cast<T*>(y));
    check_launch("dropout", how.rows, how.cols);
  });
}

}  // namespace tessera::kernels::cuda
