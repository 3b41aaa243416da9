#include "tessera/kernels/cuda/columns.cuh"

#include <algorithm>

#include "tessera/kernels/cuda/layers.h"

namespace tessera::kernels::cuda {
namespace {

constexpr std::size_t kScratchFloats = 4'400'000;  // 18 MB
constexpr std::size_t kMinGroups = kSumBlocks, kMaxGroups = 6 * kSumBlocks;
constexpr int kFinishRows = 32;
constexpr int kFinishAtOnce = 8;
constexpr int kPutThreads = 128;

__device__ __forceinline__ float load_from(const Sink& sink, std::size_t at) {
  if (sink.type == DType::f32) return static_cast<const float*>(sink.to)[at];
  if (sink.type == DType::bf16) return wide(static_cast<const bf16*>(sink.to)[at]);
  return wide(static_cast<const f16*>(sink.to)[at]);
}
__device__ __forceinline__ void put(const Sink& sink, std::size_t at, float value) {
  if (sink.type == DType::f32) {
    static_cast<float*>(sink.to)[at] = value;
  } else if (sink.type == DType::bf16) {
    static_cast<bf16*>(sink.to)[at] = narrow<bf16>(value);
  } else {
    static_cast<f16*>(sink.to)[at] = narrow<f16>(value);
  }
}

// Memory latency dominates this kernel, so each thread issues all its loads at once.
__global__ void __launch_bounds__(32 * kFinishRows)
    finish_columns_kernel(const float* __restrict__ scratch, unsigned groups, ColumnSinks sinks) {
  __shared__ float all[kFinishRows][32];
  const unsigned part_cols = static_cast<unsigned>(sinks.cols), cols = part_cols * sinks.parts;
  const unsigned column = blockIdx.x * 32 + threadIdx.x;
  const unsigned part = column < part_cols ? 0 : column < 2 * part_cols ? 1 : 2;
  const Sink sink = part == 0 ? sinks.to[0] : part == 1 ? sinks.to[1] : sinks.to[2];
  const unsigned at = column - part * part_cols;
  const bool writes = threadIdx.y == 0 && column < cols && sink.to != nullptr;
  const bool adds = writes && sink.add;
  const float before = adds ? load_from(sink, at) : 0.0f;

  float sum = 0;
  if (column < cols && sink.to != nullptr) {
    const float* from = scratch + column;
    for (unsigned first = threadIdx.y; first < groups; first += kFinishRows * kFinishAtOnce) {
      float values[kFinishAtOnce];
#pragma unroll
      for (int u = 0; u < kFinishAtOnce; ++u) {
        const unsigned group = first + u * kFinishRows;
        values[u] = group < groups ? from[std::size_t{group} * cols] : 0.0f;
      }
#pragma unroll
      for (int u = 0; u < kFinishAtOnce; ++u) sum += values[u];
    }
  }
  all[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (!writes) return;
#pragma unroll
  for (int row = 1; row < kFinishRows; ++row) sum += all[row][threadIdx.x];
  put(sink, at, adds ? before + sum : sum);
}

__global__ void __launch_bounds__(kPutThreads)
    put_sums_kernel(const float* sums, std::size_t cols, Sink to) {
  const std::size_t column = std::size_t{blockIdx.x} * kPutThreads + threadIdx.x;
  if (column >= cols) return;
  put(to, column, to.add ? load_from(to, column) + sums[column] : sums[column]);
}

template <class T, int V>
__global__ void __launch_bounds__(32 * kTileRows)
    column_sums_kernel(Tiles tiles, std::size_t cols, const T* x, float* scratch) {
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  const bool inside = pack < tiles.packs;
  x += pack * V;
  float sums[V] = {};
  for (std::size_t row = tiles.first_row(); row < end; row += kTileStep) {
    Pack<T, V> packs[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      packs[u] = inside && r < end ? Pack<T, V>::load(x + r * cols) : Pack<T, V>::zero();
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      float values[V];
      packs[u].get(values);
#pragma unroll
      for (int i = 0; i < V; ++i) sums[i] += values[i];
    }
  }
  store_partial_sums<V>(tiles, cols, sums, scratch);
}

}  // namespace

bool built() { return true; }

std::size_t max_column_groups(std::size_t rows, std::size_t cols) {
  return std::min(rows, std::clamp<std::size_t>(kScratchFloats / std::max<std::size_t>(cols, 1),
                                                kMinGroups, kMaxGroups));
}

std::size_t column_scratch(std::size_t rows, std::size_t cols) {
  // As above but without the rounding of the division, so it never decreases with more columns.
  return std::min(rows * cols,
                  std::clamp<std::size_t>(kScratchFloats, kMinGroups * cols, kMaxGroups * cols));
}

Tiles make_tiles(std::size_t rows, std::size_t cols, int pack, bool sums) {
  Tiles tiles;
  tiles.rows = rows;
  tiles.packs = divide_up(cols, pack);
  tiles.across = static_cast<unsigned>(divide_up(tiles.packs, 32));
  tiles.group_rows = kTileStep;
  if (sums && rows > 0) {
    // Enough blocks to fill a large GPU several times, with at most eight steps each. Not by the
    // card's SMs: [Note: bits and cards].
    const std::size_t steps = rows * tiles.across / (kTileStep * kSumBlocks * 16);
    tiles.group_rows *= std::clamp<std::size_t>(steps, 1, 8);
    const std::size_t fewest = divide_up(rows, max_column_groups(rows, cols));
    tiles.group_rows = std::max(tiles.group_rows, divide_up(fewest, kTileStep) * kTileStep);
  }
  tiles.groups = divide_up(rows, tiles.group_rows);
  return tiles;
}

Tiles make_long_tiles(std::size_t rows, std::size_t cols, int pack, std::size_t step,
                      std::size_t blocks) {
  Tiles tiles = make_tiles(rows, cols, pack, false);
  const std::size_t most = std::max<std::size_t>(blocks / tiles.across, 1);
  tiles.group_rows = divide_up(divide_up(rows, most), step) * step;
  tiles.groups = divide_up(rows, tiles.group_rows);
  return tiles;
}

void finish_columns(const float* scratch, std::size_t groups, const ColumnSinks& sinks,
                    Stream stream) {
  const std::size_t cols = sinks.cols * sinks.parts;
  bool wanted = false;
  for (int i = 0; i < sinks.parts; ++i) wanted = wanted || sinks.to[i].to != nullptr;
  if (cols == 0 || !wanted) return;
  finish_columns_kernel<<<static_cast<unsigned>(divide_up(cols, 32)), dim3(32, kFinishRows), 0,
                          native(stream)>>>(scratch, static_cast<unsigned>(groups), sinks);
  check_launch("finish_columns", groups, cols);
}

void column_sums(const Columns& in, Sink out, float* scratch, Stream stream) {
  if (in.cols == 0 || out.to == nullptr) return;
  with_type(in.type, "column_sums", [&]<class T>() {
    const T* x = static_cast<const T*>(in.x);
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(x);
    const Tiles tiles = make_tiles(in.rows, in.cols, whole ? kWide<T> : 1, true);
    if (tiles.groups > 0) {
      const auto kernel = whole ? &column_sums_kernel<T, kWide<T>> : &column_sums_kernel<T, 1>;
      kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(tiles, in.cols, x, scratch);
      check_launch("column_sums", in.rows, in.cols);
    }
    finish_columns(scratch, tiles.groups, {in.cols, 1, {out}}, stream);
  });
}

void put_sums(const float* sums, std::size_t cols, Sink to, Stream stream) {
  if (cols == 0 || to.to == nullptr) return;
  put_sums_kernel<<<static_cast<unsigned>(divide_up(cols, kPutThreads)), kPutThreads, 0,
                    native(stream)>>>(sums, cols, to);
  check_launch("put_sums", 1, cols);
}

}  // namespace tessera::kernels::cuda
