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
  bool centred;
  const float* mean;
  const float* rstd;
  const T* dy;
  const T* dsum;
  T* dx;
  T* y;
  float* scratch;  // a row per block: dweight, dbias and, if wanted, dx; null: not wanted
};

// The means over a row of dy · weight and dy · weight · z, z being the normalised row.
struct RowMeans {
  float g = 0, gz = 0;
};

// Both sums for R rows at once, over the block, in all threads.
template <int R>
__device__ __forceinline__ void block_sums(RowMeans (&sums)[R], RowMeans (*shared)[R]) {
  const unsigned warps = blockDim.x / 32;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    sums[r].g = warp_sum(sums[r].g);
    sums[r].gz = warp_sum(sums[r].gz);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32][r] = sums[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < R; ++r) sums[r] = {};
  for (unsigned warp = 0; warp < warps; ++warp) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const RowMeans part = shared[warp][r];
      sums[r].g += part.g;
      sums[r].gz += part.gz;
    }
  }
}

// A block takes R rows at a time, each thread K packs of each: so many loads are in flight, and the
// block meets once for all of them. Its columns being always the same, a thread adds up their
// dweight and dbias in registers.
template <class T, class W, int K, int R, int Threads, int Beside, bool DxSums>
__global__ void __launch_bounds__(Threads, Beside) norm_backward_kernel(Backward<T> in) {
  constexpr int V = kWide<T>;
  constexpr bool kLate = K == 4;  // dsum is read where it is needed: there is no room for it before
  __shared__ RowMeans shared[2][Threads / 32][R];
  const unsigned packs = static_cast<unsigned>(in.cols / V);
  const float count = static_cast<float>(in.cols);
  float dweight[K][V] = {}, dbias[K][V] = {}, dx_sums[K][V] = {};

  int turn = 0;
  for (std::size_t first = std::size_t{blockIdx.x} * R; first < in.rows;
       first += std::size_t{gridDim.x} * R, turn ^= 1) {
    Pack<T, V> s[R][K], dy[R][K], dsum[R][K];
    float mean[R], rstd[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const std::size_t row = first + r, begin = row * in.cols;
      const bool there = row < in.rows;
#pragma unroll
      for (int k = 0; k < K; ++k) {
        const unsigned at = threadIdx.x + k * blockDim.x;
        const bool here = there && at < packs;
        s[r][k] = here ? Pack<T, V>::load(in.s + begin + at * V) : Pack<T, V>::zero();
        dy[r][k] = here ? Pack<T, V>::load(in.dy + begin + at * V) : Pack<T, V>::zero();
        dsum[r][k] = here && !kLate && in.dsum != nullptr
                         ? Pack<T, V>::load(in.dsum + begin + at * V)
                         : Pack<T, V>::zero();
      }
      mean[r] = there && in.centred ? in.mean[row] : 0.0f;
      rstd[r] = there ? in.rstd[row] : 0.0f;
    }

    RowMeans sums[R];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = threadIdx.x + k * blockDim.x;
      float w[V];
      in.weight.template get_as<W>(at < packs ? at * V : 0, w);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        float z[V], g[V];
        s[r][k].get(z);
        dy[r][k].get(g);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          z[i] = (z[i] - mean[r]) * rstd[r];
          dweight[k][i] += g[i] * z[i];
          dbias[k][i] += g[i];
          g[i] *= w[i];
          sums[r].g += g[i];
          sums[r].gz += g[i] * z[i];
        }
      }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        s[r][k].keep_packed();
        dy[r][k].keep_packed();
      }
    }
    block_sums<R>(sums, shared[turn]);

#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = threadIdx.x + k * blockDim.x;
      if (at >= packs) break;
      float w[V], b[V] = {};
      in.weight.template get_as<W>(at * V, w);
      if (in.y != nullptr && in.bias.data != nullptr) in.bias.template get_as<W>(at * V, b);
#pragma unroll
      for (int r = 0; r < R; ++r) {
        if (first + r >= in.rows) break;
        const std::size_t begin = (first + r) * in.cols + at * V;
        const float g_mean = in.centred ? sums[r].g / count : 0.0f, gz_mean = sums[r].gz / count;
        float z[V], g[V], past[V];
        if (kLate && in.dsum != nullptr) dsum[r][k] = Pack<T, V>::load(in.dsum + begin);
        s[r][k].get(z);
        dy[r][k].get(g);
        dsum[r][k].get(past);
#pragma unroll
        for (int i = 0; i < V; ++i) {
          z[i] = (z[i] - mean[r]) * rstd[r];
          g[i] = past[i] + rstd[r] * (g[i] * w[i] - g_mean - z[i] * gz_mean);
          if constexpr (DxSums) dx_sums[k][i] += g[i];
        }
        Pack<T, V>::of(g).store(in.dx + begin);
        if (in.y != nullptr) {
#pragma unroll
          for (int i = 0; i < V; ++i) z[i] = z[i] * w[i] + b[i];
          Pack<T, V>::of(z).store(in.y + begin);
        }
      }
    }
  }

  if (in.scratch == nullptr) return;
  float* mine = in.scratch + std::size_t{blockIdx.x} * (DxSums ? 3 : 2) * in.cols;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const unsigned at = threadIdx.x + k * blockDim.x;
    if (at >= packs) break;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      mine[at * V + i] = dweight[k][i];
      mine[in.cols + at * V + i] = dbias[k][i];
      if constexpr (DxSums) mine[2 * in.cols + at * V + i] = dx_sums[k][i];
    }
  }
}

// For rows of any length and place: first the sums over the columns, for dx may take dy's place.
template <class T>
__global__ void __launch_bounds__(32 * kTileRows)
    norm_columns_any_kernel(Tiles tiles, Backward<T> in) {
  const std::size_t column = tiles.pack(), end = tiles.end_row();
  float dweight[1] = {}, dbias[1] = {};
  if (column < in.cols) {
    for (std::size_t row = tiles.first_row(); row < end; row += kTileRows) {
      const std::size_t at = row * in.cols + column;
      const float mean = in.centred ? in.mean[row] : 0.0f, g = wide(in.dy[at]);
      dweight[0] += g * (wide(in.s[at]) - mean) * in.rstd[row];
      dbias[0] += g;
    }
  }
  // Two halves of one row of scratch, as above.
  float* mine = in.scratch + tiles.group() * in.cols;
  leave_columns<1>(tiles, in.cols, dweight, mine);
  __syncthreads();
  leave_columns<1>(tiles, in.cols, dbias, mine + in.cols);
}

template <class T>
__global__ void __launch_bounds__(kAnyRow) norm_backward_any_kernel(Backward<T> in) {
  __shared__ float shared[2][kAnyRow / 32];
  const std::size_t row = blockIdx.x, begin = row * in.cols;
  const float mean = in.centred ? in.mean[row] : 0.0f, rstd = in.rstd[row];
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
  if (!in.centred) g_mean = 0;
  along_row(in.cols, [&](std::size_t c) {
    float w[1], b[1];
    in.weight.get(c, w);
    in.bias.get(c, b);
    const float z = (wide(in.s[begin + c]) - mean) * rstd;
    const float past = in.dsum == nullptr ? 0.0f : wide(in.dsum[begin + c]);
    const float g = wide(in.dy[begin + c]) * w[0];
    in.dx[begin + c] = narrow<T>(past + rstd * (g - g_mean - z * gz_mean));
    if (in.y != nullptr) in.y[begin + c] = narrow<T>(z * w[0] + b[0]);
  });
}

// How many rows of scratch it leaves. So many blocks as a large GPU has room for at once.
template <class T, class W, int K, int R, int Threads, int Beside>
std::size_t start_norm_backward(const Backward<T>& in, bool dx_sums, cudaStream_t stream) {
  const std::size_t packs = in.cols / kWide<T>;
  const std::size_t threads = divide_up(divide_up(packs, K), 32) * 32;
  const std::size_t beside = std::clamp<std::size_t>(Beside * Threads / threads, 1, 6);
  const std::size_t groups =
      std::min({divide_up(in.rows, R), 132 * beside, max_column_groups(in.rows, 3 * in.cols)});
  const auto kernel = dx_sums ? &norm_backward_kernel<T, W, K, R, Threads, Beside, true>
                              : &norm_backward_kernel<T, W, K, R, Threads, Beside, false>;
  kernel<<<static_cast<unsigned>(groups), static_cast<unsigned>(threads), 0, stream>>>(in);
  return groups;
}

template <class T, class W>
std::size_t start_norm_backward_fast(const Backward<T>& in, std::size_t packs, bool dx_sums,
                                     cudaStream_t stream) {
  if (packs <= 256) return start_norm_backward<T, W, 1, 2, 256, 3>(in, dx_sums, stream);
  if (packs <= 512) return start_norm_backward<T, W, 2, 2, 256, 2>(in, dx_sums, stream);
  return start_norm_backward<T, W, 4, 1, 512, 1>(in, dx_sums, stream);
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
    const Backward<T> how{in.rows,
                          in.cols,
                          static_cast<const T*>(in.x),
                          weight_of(in),
                          bias_of(in),
                          in.centred,
                          mean,
                          rstd,
                          static_cast<const T*>(dy),
                          static_cast<const T*>(dsum),
                          static_cast<T*>(dx),
                          static_cast<T*>(y),
                          sums ? scratch : nullptr};
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.weight) &&
                       is_aligned(in.bias) && is_aligned(dy) && is_aligned(dsum) &&
                       is_aligned(dx) && is_aligned(y);
    const std::size_t packs = in.cols / kWide<T>;
    const cudaStream_t s = native(stream);
    std::size_t groups = 0;
    bool any = false;
    if (in.rows == 0) {
      // The sums of no rows are zeros.
    } else if (!whole || packs > 4 * 512 ||
               (in.weight_type != in.type && in.weight_type != DType::f32)) {
      any = true;
      groups = start_norm_backward_any(how, s);
    } else if (in.weight_type == in.type) {
      groups = start_norm_backward_fast<T, T>(how, packs, dx_sums != nullptr, s);
    } else {
      groups = start_norm_backward_fast<T, float>(how, packs, dx_sums != nullptr, s);
    }
    check_launch("norm_backward", in.rows, in.cols);
    const Sink past{dx_sums, DType::f32, false};
    finish_columns(scratch, groups,
                   {in.cols, any || dx_sums == nullptr ? 2 : 3, {dweight, dbias, past}}, stream);
    if (any) column_sums({in.type, in.rows, in.cols, dx}, past, scratch, stream);
  });
}

}  // namespace tessera::kernels::cuda
