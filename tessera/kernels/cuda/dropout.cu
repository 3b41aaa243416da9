#include "tessera/kernels/cuda/dropout.h"

#include "tessera/kernels/cuda/device.cuh"
#include "tessera/kernels/cuda/philox.cuh"
#include "tessera/kernels/dropout.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int kDropoutThreads = 256;
constexpr unsigned kDropoutBlocks = 1u << 16;

// Returns the number of Philox blocks, of four columns each, that cover a row's columns.
__host__ __device__ inline std::size_t blocks_across(const Dropout& args) {
  return (args.first_column + args.cols + 3) / 4 - args.first_column / 4;
}

// Each thread processes four columns at a time: the words of one Philox block.
template <class T>
__global__ void __launch_bounds__(kDropoutThreads)
    dropout_kernel(const Dropout args, std::uint32_t least, float scale, const T* x, T* y) {
  const std::size_t across = blocks_across(args), all = args.rows * across;
  const std::size_t whole = ((args.width == 0 ? args.cols : args.width) + 3) / 4;
  const std::size_t stride = std::size_t{gridDim.x} * kDropoutThreads;
  for (std::size_t i = std::size_t{blockIdx.x} * kDropoutThreads + threadIdx.x; i < all;
       i += stride) {
    const std::size_t row = i / across, quad = args.first_column / 4 + i % across;
    const std::uint64_t sample = args.first_sample + row / args.rows_per_sample;
    const std::uint64_t block =
        (args.first_row + row % args.rows_per_sample) * static_cast<std::uint64_t>(whole) + quad;
    std::uint32_t words[4];
    philox_block(static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                 stream_of_sample(args.stream, sample), args.seed, words);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::size_t column = 4 * quad + k;
      if (column < args.first_column) continue;
      if (column >= args.first_column + args.cols) break;
      const std::size_t at = row * args.cols + column - args.first_column;
      y[at] = narrow<T>(words[k] >= least ? wide(x[at]) * scale : 0.0f);
    }
  }
}

}  // namespace

void dropout(const Dropout& args, const void* x, void* y, Stream stream) {
  const std::size_t all = args.cols == 0 ? 0 : args.rows * blocks_across(args);
  if (all == 0) return;
  if (!(args.rate >= 0) || args.rate >= 1 || args.rows_per_sample == 0) {
    throw UsageError("dropout: rate " + std::to_string(args.rate) + " with " +
                     std::to_string(args.rows_per_sample) +
                     " rows per sample: the rate must be in [0, 1), and a sample needs at least "
                     "one row.");
  }
  const std::size_t blocks = divide_up(all, kDropoutThreads);
  const unsigned grid = blocks < kDropoutBlocks ? static_cast<unsigned>(blocks) : kDropoutBlocks;
  with_type(args.type, "dropout", [&]<class T>() {
    dropout_kernel<T><<<grid, kDropoutThreads, 0, native(stream)>>>(
        args, dropout_threshold(args.rate), dropout_scale(args.rate), static_cast<const T*>(x),
        static_cast<T*>(y));
    check_launch("dropout", args.rows, args.cols);
  });
}

}  // namespace tessera::kernels::cuda
