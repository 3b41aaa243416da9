#include <algorithm>

#include "tessera/kernels/cuda/columns.cuh"
#include "tessera/kernels/cuda/norm.cuh"

namespace tessera::kernels::cuda {
namespace {

template <class T>
struct Forward {
  std::size_t rows, cols;
  const T* x;
  const T* residual;
  Columnwise weight, bias;
  float eps;
  bool centered;
  T* y;
  T* sum;
  float* mean;
  float* rstd;
  float* largest;
};

// Blocks per SM that leave enough registers for K packs and those of the next row.
template <int K, int G, bool Residual>
constexpr int min_blocks_per_sm() {
  if (G == 512) return 1;
  if (G == 256) return Residual ? 2 : 3;
  if (K == 2) return 8;
  if (K == 4) return Residual ? 5 : 7;
  return Residual ? 4 : 5;
}

// Holds a row in the registers of G threads, K packs each. The row is read once, and if registers
// allow, the next one is loaded meanwhile. Rows of up to 224 packs get one warp each, with several
// warps per block, so no warp waits for another; their weights stay in shared memory.
template <class T, class W, int K, int G, bool Residual>
__global__ void __launch_bounds__(G == 32 ? 128 : G, min_blocks_per_sm<K, G, Residual>())
    norm_forward_kernel(Forward<T> in) {
  constexpr int V = kWide<T>;
  constexpr int kRows = G == 32 ? 4 : 1;
  constexpr bool kAhead = K < 8;
  extern __shared__ uint4 weights[];  // for one-warp rows: weight, bias
  __shared__ float shared[3][G / 32];
  const unsigned lane = threadIdx.x % G, packs = static_cast<unsigned>(in.cols / V);
  const std::size_t step = std::size_t{gridDim.x} * kRows;
  std::size_t row = std::size_t{blockIdx.x} * kRows + threadIdx.x / G;

  Pack<T, V> next[K], next_residual[Residual ? K : 1];
  const auto read = [&](std::size_t from) {
    const T* x = in.x + from * in.cols;
    const T* residual = in.residual + from * in.cols;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = lane + k * G;
      const bool here = from < in.rows && at < packs;  // zeros beyond the row
      next[k] = here ? Pack<T, V>::load(x + at * V) : Pack<T, V>::zero();
      if constexpr (Residual) {
        next_residual[k] = here ? Pack<T, V>::load(residual + at * V) : Pack<T, V>::zero();
      }
    }
  };
  if constexpr (kAhead) read(row);

  Columnwise weight = in.weight, bias = in.bias;
  if constexpr (G == 32) {
    const unsigned all = static_cast<unsigned>(in.cols * sizeof(W) / sizeof(uint4));
    for (unsigned at = threadIdx.x; at < all; at += kRows * G) {
      copy_async(weights + at, static_cast<const uint4*>(weight.data) + at);
      if (bias.data != nullptr) {
        copy_async(weights + all + at, static_cast<const uint4*>(bias.data) + at);
      }
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    weight.data = weights;
    if (bias.data != nullptr) bias.data = weights + all;
  }

  const float count = static_cast<float>(in.cols);
  float top = 0;
  for (int turn = 0; row < in.rows; row += step, turn ^= 1) {
    if constexpr (!kAhead) read(row);
    Pack<T, V> s[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s[k] = next[k];
      if constexpr (Residual) {
        const unsigned at = lane + k * G;
        float a[V], b[V];
        s[k].get(a);
        next_residual[k].get(b);
#pragma unroll
        for (int i = 0; i < V; ++i) a[i] += b[i];
        s[k] = Pack<T, V>::of(a);  // normalize the rounded value that is stored
        if (at < packs) s[k].store(in.sum + row * in.cols + at * V);
      }
    }
    if constexpr (kAhead) read(row + step);

    float mean = 0;
    if (in.centered) {
#pragma unroll
      for (int k = 0; k < K; ++k) {
        float a[V];
        s[k].get(a);
#pragma unroll
        for (int i = 0; i < V; ++i) mean += a[i];
      }
      mean = group_sum<G>(mean, shared[0]) / count;
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      s[k].keep_packed();
      if (lane + k * G >= packs) continue;
      float a[V];
      s[k].get(a);
#pragma unroll
      for (int i = 0; i < V; ++i) squares += (a[i] - mean) * (a[i] - mean);
    }
    // Two buffers alternate: no thread writes to one before all have passed the barrier of the
    // other.
    const float rstd = rsqrtf(group_sum<G>(squares, shared[1 + turn]) / count + in.eps);

    T* y = in.y + row * in.cols;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = lane + k * G;
      s[k].keep_packed();
      if (at >= packs) continue;
      float a[V], w[V], b[V] = {};
      s[k].get(a);
      weight.template get_as<W>(at * V, w);
      if (bias.data != nullptr) bias.template get_as<W>(at * V, b);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        a[i] = (a[i] - mean) * rstd * w[i] + b[i];
        top = fmaxf(top, fabsf(a[i]));
      }
      Pack<T, V>::of(a).store(y + at * V);
    }
    if (lane == 0) {
      if (in.centered) in.mean[row] = mean;
      in.rstd[row] = rstd;
    }
  }
  raise_largest<T>(in.largest, top);
}

// Fallback for rows of any length and alignment, one element at a time.
template <class T>
__global__ void __launch_bounds__(kAnyRow) norm_forward_any_kernel(Forward<T> in) {
  __shared__ float shared[2][kAnyRow / 32];
  const std::size_t row = blockIdx.x, begin = row * in.cols;
  const T* s = in.x + begin;
  if (in.residual != nullptr) {
    along_row(in.cols, [&](std::size_t c) {
      in.sum[begin + c] = narrow<T>(wide(in.x[begin + c]) + wide(in.residual[begin + c]));
    });
    s = in.sum + begin;  // each thread reads only what it wrote itself
  }
  const float count = static_cast<float>(in.cols);
  float mean = 0, squares = 0;
  if (in.centered) {
    along_row(in.cols, [&](std::size_t c) { mean += wide(s[c]); });
    mean = group_sum<kAnyRow>(mean, shared[0]) / count;
  }
  along_row(in.cols, [&](std::size_t c) {
    const float a = wide(s[c]) - mean;
    squares += a * a;
  });
  const float rstd = rsqrtf(group_sum<kAnyRow>(squares, shared[1]) / count + in.eps);
  float top = 0;
  along_row(in.cols, [&](std::size_t c) {
    float w[1], b[1];
    in.weight.get(c, w);
    in.bias.get(c, b);
    const float value = (wide(s[c]) - mean) * rstd * w[0] + b[0];
    top = fmaxf(top, fabsf(value));
    in.y[begin + c] = narrow<T>(value);
  });
  raise_largest<T>(in.largest, top);
  if (threadIdx.x == 0) {
    if (in.centered) in.mean[row] = mean;
    in.rstd[row] = rstd;
  }
}

constexpr int kRecomputeRows = 2;         // rows processed together, and as many in flight
constexpr int kRecomputeBlocksPerSm = 4;  // blocks per SM
constexpr std::size_t kRecomputeStep = kRecomputeRows * kTileRows;

template <class T, int V>
__global__ void __launch_bounds__(32 * kTileRows, kRecomputeBlocksPerSm)
    norm_recompute_kernel(Tiles tiles, Forward<T> in) {
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  if (pack >= tiles.packs) return;
  const T* x = in.x + pack * V;
  T* y = in.y + pack * V;
  Pack<T, V> next[kRecomputeRows];
  float next_mean[kRecomputeRows], next_rstd[kRecomputeRows];
  const auto read = [&](std::size_t row) {
#pragma unroll
    for (int u = 0; u < kRecomputeRows; ++u) {
      const std::size_t r = row + u * kTileRows;
      const bool here = r < end;
      next[u] = here ? Pack<T, V>::load(x + r * in.cols) : Pack<T, V>::zero();
      next_mean[u] = here && in.centered ? in.mean[r] : 0.0f;
      next_rstd[u] = here ? in.rstd[r] : 0.0f;
    }
  };
  read(tiles.first_row());
  float w[V], b[V];
  in.weight.get(pack * V, w);
  in.bias.get(pack * V, b);
  for (std::size_t row = tiles.first_row(); row < end; row += kRecomputeStep) {
    Pack<T, V> packs[kRecomputeRows];
    float mean[kRecomputeRows], rstd[kRecomputeRows];
#pragma unroll
    for (int u = 0; u < kRecomputeRows; ++u) {
      packs[u] = next[u];
      mean[u] = next_mean[u];
      rstd[u] = next_rstd[u];
    }
    read(row + kRecomputeStep);
#pragma unroll
    for (int u = 0; u < kRecomputeRows; ++u) {
      const std::size_t r = row + u * kTileRows;
      if (r >= end) break;
      float a[V];
      packs[u].get(a);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = (a[i] - mean[u]) * rstd[u] * w[i] + b[i];
      Pack<T, V>::of(a).store(y + r * in.cols);
    }
  }
}

template <class T, class W, int K, int G, bool Residual>
void start_norm_forward(const Forward<T>& in, cudaStream_t stream) {
  constexpr int kRows = G == 32 ? 4 : 1;
  const std::size_t blocks = std::min<std::size_t>(
      divide_up(in.rows, kRows), sm_count() * min_blocks_per_sm<K, G, Residual>());
  const std::size_t weights = G == 32 ? 2 * in.cols * sizeof(W) : 0;
  norm_forward_kernel<T, W, K, G, Residual>
      <<<static_cast<unsigned>(blocks), G * kRows, weights, stream>>>(in);
}

constexpr std::size_t kMaxPacks = 512 * 8;  // longest row that the threads of a block can hold

template <class T, class W, bool Residual>
void start_norm_forward_fast(const Forward<T>& in, cudaStream_t stream) {
  const std::size_t packs = in.cols / kWide<T>;
  if (packs <= 32 * 2) return start_norm_forward<T, W, 2, 32, Residual>(in, stream);
  if (packs <= 32 * 4) return start_norm_forward<T, W, 4, 32, Residual>(in, stream);
  if (packs <= 32 * 7) return start_norm_forward<T, W, 7, 32, Residual>(in, stream);
  if (packs <= 128 * 4) return start_norm_forward<T, W, 4, 128, Residual>(in, stream);
  if (packs <= 256 * 4) return start_norm_forward<T, W, 4, 256, Residual>(in, stream);
  if (packs <= 256 * 8) return start_norm_forward<T, W, 8, 256, Residual>(in, stream);
  return start_norm_forward<T, W, 8, 512, Residual>(in, stream);
}

template <class T, class W>
void start_norm_forward_with(const Forward<T>& in, cudaStream_t stream) {
  in.residual == nullptr ? start_norm_forward_fast<T, W, false>(in, stream)
                         : start_norm_forward_fast<T, W, true>(in, stream);
}

}  // namespace

void norm_forward(const Norm& in, void* y, void* sum, float* mean, float* rstd, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "norm_forward", [&]<class T>() {
    const Forward<T> args{in.rows,
                          in.cols,
                          static_cast<const T*>(in.x),
                          static_cast<const T*>(in.residual),
                          weight_of(in),
                          bias_of(in),
                          in.eps,
                          in.centered,
                          static_cast<T*>(y),
                          static_cast<T*>(sum),
                          mean,
                          rstd,
                          in.largest};
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.residual) &&
                       is_aligned(in.weight) && is_aligned(in.bias) && is_aligned(y) &&
                       is_aligned(sum);
    const cudaStream_t s = native(stream);
    const auto packs = in.cols / kWide<T>;
    if (!whole || packs > kMaxPacks ||
        (in.weight_type != in.type && in.weight_type != DType::f32)) {
      norm_forward_any_kernel<T><<<static_cast<unsigned>(in.rows), kAnyRow, 0, s>>>(args);
    } else if (in.weight_type == in.type) {
      start_norm_forward_with<T, T>(args, s);
    } else {
      start_norm_forward_with<T, float>(args, s);
    }
    check_launch("norm_forward", in.rows, in.cols);
  });
}

void norm_recompute(const Norm& in, const float* mean, const float* rstd, void* y, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "norm_recompute", [&]<class T>() {
    Forward<T> args{};
    args.rows = in.rows;
    args.cols = in.cols;
    args.x = static_cast<const T*>(in.x);
    args.weight = weight_of(in);
    args.bias = bias_of(in);
    args.centered = in.centered;
    args.y = static_cast<T*>(y);
    args.mean = const_cast<float*>(mean);  // not written
    args.rstd = const_cast<float*>(rstd);
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.weight) &&
                       is_aligned(in.bias) && is_aligned(y);
    const Tiles tiles = make_long_tiles(in.rows, in.cols, whole ? kWide<T> : 1, kRecomputeStep,
                                        sm_count() * kRecomputeBlocksPerSm);
    const auto kernel = whole ? &norm_recompute_kernel<T, kWide<T>> : &norm_recompute_kernel<T, 1>;
    kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(tiles, args);
    check_launch("norm_recompute", in.rows, in.cols);
  });
}

}  // namespace tessera::kernels::cuda
