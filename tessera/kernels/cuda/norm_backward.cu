#include <algorithm>

#include "tessera/kernels/cuda/columns.cuh"
#include "tessera/kernels/cuda/norm.cuh"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct Backward {
  std::size_t rows, cols;
  const T* s;
  Columnwise weight, bias;
  bool centered;
  const float* mean;
  const float* rstd;
  const T* dy;
  const T* dsum;
  T* dx;
  T* y;
  float* scratch;  // one row per block: dweight, dbias and optionally dx sums; null: not computed
  float* largest;  // of dx; may be null
};

// Means over a row of dy · weight and dy · weight · z, where z is the normalized row.
struct RowMeans {
  float g = 0, gz = 0;
};

// [Note: norm backward] A row is processed by a group of threads, each holding K packs of it, and
// an SM runs one block of several groups. A thread processes fixed columns and accumulates their
// sums in registers over all rows of its group. To keep memory busy during the arithmetic, the next
// rows are copied to shared memory meanwhile: each thread copies what it will read itself, so it
// synchronizes with others only for the means over the row. The sums of a block are one partial
// sum, so the number of blocks is kSumBlocks on every card: [Note: bits and cards].
constexpr unsigned kMaxRowGroups = 15;  // a block has 16 barriers, one of which is for all threads
constexpr unsigned kMaxStages = 3;

template <int K>
constexpr unsigned kBlockThreads = K == 1 ? 896 : 512;  // limited by registers

// Barrier for the threads of a group.
__device__ __forceinline__ void sync_group(unsigned group, unsigned threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

template <class T, class W, int K, bool DxSums>
__global__ void __launch_bounds__(kBlockThreads<K>, 1)
    norm_backward_kernel(Backward<T> in, unsigned group_threads, unsigned stages) {
  constexpr int V = kWide<T>;
  constexpr unsigned kParts = DxSums ? 3 : 2;
  extern __shared__ uint4 staged[];  // [stages][s, dy, dsum][K][threads of the block]
  __shared__ RowMeans partial[2][kBlockThreads<K> / 32];
  const unsigned groups = blockDim.x / group_threads, group = threadIdx.x / group_threads;
  const unsigned lane = threadIdx.x - group * group_threads;
  const unsigned warps = group_threads / 32, first_warp = group * warps;
  const unsigned packs = static_cast<unsigned>(in.cols / V);
  const unsigned matrix = K * blockDim.x;  // packs of one matrix in a stage
  const float per_column = 1.0f / static_cast<float>(in.cols);
  const std::size_t start = blockIdx.x + std::size_t{group} * gridDim.x;
  const std::size_t step = std::size_t{gridDim.x} * groups;
  float dweight[K][V] = {}, dbias[K][V] = {}, dx_sums[K][V] = {}, top = 0;

  const auto fetch = [&](std::size_t row, unsigned stage) {
    if (row < in.rows) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const unsigned at = lane + k * group_threads;
        if (at >= packs) break;
        const std::size_t begin = row * in.cols + at * V;
        uint4* const to = staged + stage * 3 * matrix + k * blockDim.x + threadIdx.x;
        copy_async(to, in.s + begin);
        copy_async(to + matrix, in.dy + begin);
        if (in.dsum != nullptr) copy_async(to + 2 * matrix, in.dsum + begin);
      }
    }
    commit_copies();  // an empty group counts too
  };
  for (unsigned stage = 0; stage + 1 < stages; ++stage) fetch(start + stage * step, stage);

  float next_mean = 0, next_rstd = 0;
  const auto fetch_numbers = [&](std::size_t row) {
    if (row >= in.rows) return;
    if (in.centered) next_mean = in.mean[row];
    next_rstd = in.rstd[row];
  };
  fetch_numbers(start);

  unsigned stage = 0, turn = 0;
  for (std::size_t row = start; row < in.rows; row += step, turn ^= 1) {
    // Into the stage of the previous row, which this thread has finished.
    fetch(row + (stages - 1) * step, stage == 0 ? stages - 1 : stage - 1);
    const float mean = next_mean, rstd = next_rstd;
    fetch_numbers(row + step);
    if (stages == 3) {
      wait_copies<2>();
    } else if (stages == 2) {
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    const uint4* const mine = staged + stage * 3 * matrix + threadIdx.x;

    RowMeans means;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = lane + k * group_threads;
      if (at >= packs) break;
      float w[V], z[V], g[V];
      in.weight.template get_as<W>(at * V, w);
      Pack<T, V>{mine[k * blockDim.x]}.get(z);
      Pack<T, V>{mine[matrix + k * blockDim.x]}.get(g);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        z[i] = (z[i] - mean) * rstd;
        dweight[k][i] += g[i] * z[i];
        dbias[k][i] += g[i];
        g[i] *= w[i];
        means.g += g[i];
        means.gz += g[i] * z[i];
      }
    }
    means.g = warp_sum(means.g);
    means.gz = warp_sum(means.gz);
    // Two buffers alternate: no thread writes to one before all have passed the barrier of the
    // other.
    if (threadIdx.x % 32 == 0) partial[turn][threadIdx.x / 32] = means;
    sync_group(group, group_threads);
    means = {};
    for (unsigned warp = 0; warp < warps; ++warp) {
      const RowMeans part = partial[turn][first_warp + warp];
      means.g += part.g;
      means.gz += part.gz;
    }
    const float g_mean = in.centered ? means.g * per_column : 0.0f;
    const float gz_mean = means.gz * per_column;

#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = lane + k * group_threads;
      if (at >= packs) break;
      const std::size_t begin = row * in.cols + at * V;
      float w[V], z[V], g[V], past[V] = {};
      in.weight.template get_as<W>(at * V, w);
      Pack<T, V>{mine[k * blockDim.x]}.get(z);
      Pack<T, V>{mine[matrix + k * blockDim.x]}.get(g);
      if (in.dsum != nullptr) Pack<T, V>{mine[2 * matrix + k * blockDim.x]}.get(past);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        z[i] = (z[i] - mean) * rstd;
        g[i] = past[i] + rstd * (g[i] * w[i] - g_mean - z[i] * gz_mean);
        top = fmaxf(top, fabsf(g[i]));
        if constexpr (DxSums) dx_sums[k][i] += g[i];
      }
      Pack<T, V>::of(g).store(in.dx + begin);
      if (in.y != nullptr) {
        float b[V] = {};
        if (in.bias.data != nullptr) in.bias.template get_as<W>(at * V, b);
#pragma unroll
        for (int i = 0; i < V; ++i) z[i] = z[i] * w[i] + b[i];
        Pack<T, V>::of(z).store(in.y + begin);
      }
    }
    stage = stage + 1 == stages ? 0 : stage + 1;
  }

  raise_largest<T>(in.largest, top);
  if (in.scratch == nullptr) return;
  // Adds the sums of the block's groups, reusing the memory of the staged rows.
  const unsigned all = kParts * static_cast<unsigned>(in.cols);
  float* const to = in.scratch + std::size_t{blockIdx.x} * all;
  wait_copies<0>();
  __syncthreads();
  float* const sums = groups == 1 ? to : reinterpret_cast<float*>(staged) + group * all;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const unsigned at = lane + k * group_threads;
    if (at >= packs) break;
#pragma unroll
    for (int i = 0; i < V; i += 4) {
      const auto put = [&](unsigned part, const float(&x)[V]) {
        *reinterpret_cast<float4*>(sums + part * in.cols + at * V + i) =
            float4{x[i], x[i + 1], x[i + 2], x[i + 3]};
      };
      put(0, dweight[k]);
      put(1, dbias[k]);
      if constexpr (DxSums) put(2, dx_sums[k]);
    }
  }
  if (groups == 1) return;
  __syncthreads();
  const auto* const quads = reinterpret_cast<const float4*>(staged);
  for (unsigned at = threadIdx.x; at < all / 4; at += blockDim.x) {
    float4 total = quads[at];
    for (unsigned other = 1; other < groups; ++other) {
      const float4 more = quads[other * (all / 4) + at];
      total.x += more.x, total.y += more.y, total.z += more.z, total.w += more.w;
    }
    reinterpret_cast<float4*>(to)[at] = total;
  }
}

// Column sums for rows of any length and alignment. Runs first because dx may overwrite dy.
template <class T>
__global__ void __launch_bounds__(32 * kTileRows)
    norm_columns_any_kernel(Tiles tiles, Backward<T> in) {
  const std::size_t column = tiles.pack(), end = tiles.end_row();
  float dweight[1] = {}, dbias[1] = {};
  if (column < in.cols) {
    for (std::size_t row = tiles.first_row(); row < end; row += kTileRows) {
      const std::size_t at = row * in.cols + column;
      const float mean = in.centered ? in.mean[row] : 0.0f, g = wide(in.dy[at]);
      dweight[0] += g * (wide(in.s[at]) - mean) * in.rstd[row];
      dbias[0] += g;
    }
  }
  // Two halves of one row of scratch, as above.
  float* mine = in.scratch + tiles.group() * in.cols;
  store_partial_sums<1>(tiles, in.cols, dweight, mine);
  __syncthreads();
  store_partial_sums<1>(tiles, in.cols, dbias, mine + in.cols);
}

template <class T>
__global__ void __launch_bounds__(kAnyRow) norm_backward_any_kernel(Backward<T> in) {
  __shared__ float shared[2][kAnyRow / 32];
  const std::size_t row = blockIdx.x, begin = row * in.cols;
  const float mean = in.centered ? in.mean[row] : 0.0f, rstd = in.rstd[row];
  const float count = static_cast<float>(in.cols);
  float g_mean = 0, gz_mean = 0;
  along_row(in.cols, [&](std::size_t c) {
    float w[1];
    in.weight.get(c, w);
    const float g = wide(in.dy[begin + c]) * w[0];
    g_mean += g;
    gz_mean += g * (wide(in.s[begin + c]) - mean) * rstd;
  });
  g_mean = group_sum<kAnyRow>(g_mean, shared[0]) / count;
  gz_mean = group_sum<kAnyRow>(gz_mean, shared[1]) / count;
  if (!in.centered) g_mean = 0;
  float top = 0;
  along_row(in.cols, [&](std::size_t c) {
    float w[1], b[1];
    in.weight.get(c, w);
    in.bias.get(c, b);
    const float z = (wide(in.s[begin + c]) - mean) * rstd;
    const float past = in.dsum == nullptr ? 0.0f : wide(in.dsum[begin + c]);
    const float g = wide(in.dy[begin + c]) * w[0];
    const float dx = past + rstd * (g - g_mean - z * gz_mean);
    top = fmaxf(top, fabsf(dx));
    in.dx[begin + c] = narrow<T>(dx);
    if (in.y != nullptr) in.y[begin + c] = narrow<T>(z * w[0] + b[0]);
  });
  raise_largest<T>(in.largest, top);
}

// Launches the kernel and returns the number of rows of scratch that it writes.
template <class T, class W, int K>
std::size_t start_norm_backward(const Backward<T>& in, std::size_t packs, bool dx_sums,
                                cudaStream_t stream) {
  const unsigned threads = static_cast<unsigned>(divide_up(divide_up(packs, K), 32) * 32);
  const unsigned groups = std::min(kBlockThreads<K> / threads, kMaxRowGroups);
  const std::size_t stage = std::size_t{3} * K * sizeof(uint4) * threads * groups;
  int device = 0, shared_bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  // Several groups need two stages for their sums; every GPU since sm_80 has enough memory for
  // these.
  constexpr std::size_t kOther = 1024;
  const std::size_t stages = std::clamp<std::size_t>(
      (static_cast<std::size_t>(shared_bytes) - kOther) / stage, groups > 1 ? 2 : 1, kMaxStages);
  const auto kernel =
      dx_sums ? &norm_backward_kernel<T, W, K, true> : &norm_backward_kernel<T, W, K, false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                       static_cast<int>(stage * stages));
  // One group on every SM is better than all groups on a few SMs.
  const std::size_t blocks = std::min(in.rows, kSumBlocks);
  kernel<<<static_cast<unsigned>(blocks), threads * groups, stage * stages, stream>>>(
      in, threads, static_cast<unsigned>(stages));
  return blocks;
}

// Longest row, in packs, that the threads of a block can hold.
constexpr std::size_t kMaxPacks = 4 * kBlockThreads<4>;

template <class T, class W>
std::size_t start_norm_backward_fast(const Backward<T>& in, std::size_t packs, bool dx_sums,
                                     cudaStream_t stream) {
  if (packs <= kBlockThreads<1> / 2)
    return start_norm_backward<T, W, 1>(in, packs, dx_sums, stream);
  if (packs <= 2 * kBlockThreads<2>)
    return start_norm_backward<T, W, 2>(in, packs, dx_sums, stream);
  return start_norm_backward<T, W, 4>(in, packs, dx_sums, stream);
}

template <class T>
std::size_t start_norm_backward_any(const Backward<T>& in, cudaStream_t stream) {
  Tiles tiles;
  if (in.scratch != nullptr) {
    // Rows of scratch are twice as wide as the matrix.
    tiles = make_tiles(in.rows, in.cols, 1, true);
    const std::size_t most = max_column_groups(in.rows, 2 * in.cols);
    tiles.group_rows = std::max(tiles.group_rows, divide_up(in.rows, most));
    tiles.groups = divide_up(in.rows, tiles.group_rows);
    norm_columns_any_kernel<T><<<tiles.grid(), tiles.block(), 0, stream>>>(tiles, in);
    check_launch("norm_backward", in.rows, in.cols);
  }
  norm_backward_any_kernel<T><<<static_cast<unsigned>(in.rows), kAnyRow, 0, stream>>>(in);
  return tiles.groups;
}

}  // namespace

void norm_backward(const Norm& in, const float* mean, const float* rstd, const void* dy,
                   const void* dsum, void* dx, void* y, Sink dweight, Sink dbias, float* dx_sums,
                   float* scratch, Stream stream) {
  if (in.cols == 0) return;
  with_type(in.type, "norm_backward", [&]<class T>() {
    const bool sums = dweight.to != nullptr || dbias.to != nullptr || dx_sums != nullptr;
    const Backward<T> args{in.rows,
                           in.cols,
                           static_cast<const T*>(in.x),
                           weight_of(in),
                           bias_of(in),
                           in.centered,
                           mean,
                           rstd,
                           static_cast<const T*>(dy),
                           static_cast<const T*>(dsum),
                           static_cast<T*>(dx),
                           static_cast<T*>(y),
                           sums ? scratch : nullptr,
                           in.largest};
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.weight) &&
                       is_aligned(in.bias) && is_aligned(dy) && is_aligned(dsum) &&
                       is_aligned(dx) && is_aligned(y) && is_aligned(scratch);
    const std::size_t packs = in.cols / kWide<T>;
    const cudaStream_t s = native(stream);
    std::size_t groups = 0;
    bool any = false;
    if (in.rows == 0) {
      // The sums over zero rows are zeros.
    } else if (!whole || packs > kMaxPacks ||
               (in.weight_type != in.type && in.weight_type != DType::f32)) {
      any = true;
      groups = start_norm_backward_any(args, s);
    } else if (in.weight_type == in.type) {
      groups = start_norm_backward_fast<T, T>(args, packs, dx_sums != nullptr, s);
    } else {
      groups = start_norm_backward_fast<T, float>(args, packs, dx_sums != nullptr, s);
    }
    check_launch("norm_backward", in.rows, in.cols);
    const Sink past{dx_sums, DType::f32, false};
    finish_columns(scratch, groups,
                   {in.cols, any || dx_sums == nullptr ? 2 : 3, {dweight, dbias, past}}, stream);
    if (any) column_sums({in.type, in.rows, in.cols, dx}, past, scratch, stream);
  });
}

}  // namespace tessera::kernels::cuda
