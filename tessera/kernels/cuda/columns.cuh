// [Note: tiles] Decomposition of a matrix in which each thread processes a fixed set of columns: a
// block of 32 by 8 threads covers 32 packs of columns (512 bytes of each row) and a number of rows.
// Each warp reads one row at a time, with kRowsAtOnce rows in flight per thread. The sums over the
// rows of a block go to scratch, one row of floats per block row, and finish_columns adds them.
#pragma once

#include "tessera/kernels/cuda/device.cuh"

namespace tessera::kernels::cuda {

constexpr int kTileRows = 8;    // threads per block along the rows
constexpr int kRowsAtOnce = 4;  // rows in flight per thread
constexpr std::size_t kTileStep = kTileRows * kRowsAtOnce;

struct Tiles {
  unsigned across = 0;     // tiles along the columns
  std::size_t groups = 0;  // blocks along the rows
  std::size_t group_rows = 0;
  std::size_t rows = 0;
  std::size_t packs = 0;  // packs per row

  dim3 grid() const { return dim3(static_cast<unsigned>(across * groups)); }
  dim3 block() const { return dim3(32, kTileRows); }

  // Pack, group and rows of this thread.
  __device__ __forceinline__ std::size_t pack() const {
    return std::size_t{blockIdx.x % across} * 32 + threadIdx.x;
  }
  __device__ __forceinline__ std::size_t group() const { return blockIdx.x / across; }
  __device__ __forceinline__ std::size_t first_row() const {
    return group() * group_rows + threadIdx.y;
  }
  __device__ __forceinline__ std::size_t end_row() const {
    const std::size_t end = (group() + 1) * group_rows;
    return end < rows ? end : rows;
  }
};

// Returns the maximum number of rows of partial sums for this matrix.
std::size_t max_column_groups(std::size_t rows, std::size_t cols);

// Divides a matrix into tiles. `sums`: the blocks leave partial sums, so fewer blocks are made.
Tiles make_tiles(std::size_t rows, std::size_t cols, int pack, bool sums);
// Divides a matrix into at most `blocks` blocks; the rows of each are a multiple of `step`.
Tiles make_long_tiles(std::size_t rows, std::size_t cols, int pack, std::size_t step,
                      std::size_t blocks);

// Adds the threads' sums over the block and writes them to the block's row of `scratch`.
template <int V>
__device__ __forceinline__ void store_partial_sums(const Tiles& tiles, std::size_t cols,
                                                   const float (&sums)[V], float* scratch) {
  __shared__ float all[kTileRows][V][33];
#pragma unroll
  for (int i = 0; i < V; ++i) all[threadIdx.y][i][threadIdx.x] = sums[i];
  __syncthreads();
  const std::size_t first = std::size_t{blockIdx.x % tiles.across} * 32 * V;
  for (unsigned at = threadIdx.y * 32 + threadIdx.x; at < 32 * V; at += 32 * kTileRows) {
    if (first + at >= cols) break;
    float total = 0;
#pragma unroll
    for (int row = 0; row < kTileRows; ++row) total += all[row][at % V][at / V];
    scratch[tiles.group() * cols + first + at] = total;
  }
}

// Destinations of the columns of a row of scratch, which has `parts` times `cols` columns.
struct ColumnSinks {
  std::size_t cols = 0;
  int parts = 1;
  Sink to[3] = {};
};
// Writes the sum of `groups` rows of `scratch` to the sinks.
void finish_columns(const float* scratch, std::size_t groups, const ColumnSinks& sinks,
                    Stream stream);

}  // namespace tessera::kernels::cuda
