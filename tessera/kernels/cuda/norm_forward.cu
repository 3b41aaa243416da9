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
  bool centred;
  T* y;
  T* sum;
  float* mean;
  float* rstd;
};

// A row in the registers of G threads, K packs in each: it is read once. Rows of up to 256 packs
// get a warp, several of them to a block, and then nobody waits for another warp.
template <class T, int K, int G>
__global__ void __launch_bounds__(G == 32 ? 128 : G) norm_forward_kernel(Forward<T> in) {
  constexpr int V = kWide<T>;
  constexpr int kRows = G == 32 ? 4 : 1;
  __shared__ float shared[2][G / 32];
  const std::size_t row = std::size_t{blockIdx.x} * kRows + threadIdx.x / G;
  if (row >= in.rows) return;  // whole warps, and only where there are several rows in a block
  const unsigned lane = threadIdx.x % G, packs = static_cast<unsigned>(in.cols / V);
  const T* x = in.x + row * in.cols;

  Pack<T, V> s[K];
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const unsigned at = lane + k * G;
    s[k] = at < packs ? Pack<T, V>::load(x + at * V) : Pack<T, V>::zero();
  }
  if (in.residual != nullptr) {
    const T* residual = in.residual + row * in.cols;
    T* sum = in.sum + row * in.cols;
    Pack<T, V> r[K];
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = lane + k * G;
      r[k] = at < packs ? Pack<T, V>::load(residual + at * V) : Pack<T, V>::zero();
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const unsigned at = lane + k * G;
      float a[V], b[V];
      s[k].get(a);
      r[k].get(b);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] += b[i];
      s[k] = Pack<T, V>::of(a);  // the norm is that of what is kept
      if (at < packs) s[k].store(sum + at * V);
    }
  }

  const float count = static_cast<float>(in.cols);
  float mean = 0;
  if (in.centred) {
#pragma unroll
    for (int k = 0; k < K; ++k) {  // beyond the row there are zeros
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
    if (lane + k * G >= packs) break;
    float a[V];
    s[k].get(a);
#pragma unroll
    for (int i = 0; i < V; ++i) squares += (a[i] - mean) * (a[i] - mean);
  }
  const float rstd = rsqrtf(group_sum<G>(squares, shared[1]) / count + in.eps);

  T* y = in.y + row * in.cols;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const unsigned at = lane + k * G;
    if (at >= packs) break;
    float a[V], w[V], b[V];
    s[k].get(a);
    in.weight.get(at * V, w);
    in.bias.get(at * V, b);
#pragma unroll
    for (int i = 0; i < V; ++i) a[i] = (a[i] - mean) * rstd * w[i] + b[i];
    Pack<T, V>::of(a).store(y + at * V);
  }
  if (lane == 0) {
    if (in.centred) in.mean[row] = mean;
    in.rstd[row] = rstd;
  }
}

// Rows of any length and place, one after another element: slow, and always right.
template <class T>
__global__ void __launch_bounds__(kAnyRow) norm_forward_any_kernel(Forward<T> in) {
  __shared__ float shared[2][kAnyRow / 32];
  const std::size_t row = blockIdx.x, begin = row * in.cols;
  const T* s = in.x + begin;
  if (in.residual != nullptr) {
    along_row(in.cols, [&](std::size_t c) {
      in.sum[begin + c] = narrow<T>(wide(in.x[begin + c]) + wide(in.residual[begin + c]));
    });
    s = in.sum + begin;  // each thread reads what it has written itself
  }
  const float count = static_cast<float>(in.cols);
  float mean = 0, squares = 0;
  if (in.centred) {
    along_row(in.cols, [&](std::size_t c) { mean += wide(s[c]); });
    mean = group_sum<kAnyRow>(mean, shared[0]) / count;
  }
  along_row(in.cols, [&](std::size_t c) {
    const float a = wide(s[c]) - mean;
    squares += a * a;
  });
  const float rstd = rsqrtf(group_sum<kAnyRow>(squares, shared[1]) / count + in.eps);
  along_row(in.cols, [&](std::size_t c) {
    float w[1], b[1];
    in.weight.get(c, w);
    in.bias.get(c, b);
    in.y[begin + c] = narrow<T>((wide(s[c]) - mean) * rstd * w[0] + b[0]);
  });
  if (threadIdx.x == 0) {
    if (in.centred) in.mean[row] = mean;
    in.rstd[row] = rstd;
  }
}

template <class T, int V>
__global__ void __launch_bounds__(32 * kTileRows) norm_again_kernel(Tiles tiles, Forward<T> in) {
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  if (pack >= tiles.packs) return;
  float w[V], b[V];
  in.weight.get(pack * V, w);
  in.bias.get(pack * V, b);
  const T* x = in.x + pack * V;
  T* y = in.y + pack * V;
  for (std::size_t row = tiles.first_row(); row < end; row += kTileStep) {
    Pack<T, V> packs[kRowsAtOnce];
    float means[kRowsAtOnce], rstds[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      const bool here = r < end;
      packs[u] = here ? Pack<T, V>::load(x + r * in.cols) : Pack<T, V>::zero();
      means[u] = here && in.centred ? in.mean[r] : 0.0f;
      rstds[u] = here ? in.rstd[r] : 0.0f;
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      if (r >= end) break;
      float a[V];
      packs[u].get(a);
#pragma unroll
      for (int i = 0; i < V; ++i) a[i] = (a[i] - means[u]) * rstds[u] * w[i] + b[i];
      Pack<T, V>::of(a).store(y + r * in.cols);
    }
  }
}

template <class T, int K, int G>
void start_norm_forward(const Forward<T>& in, cudaStream_t stream) {
  constexpr int kRows = G == 32 ? 4 : 1;
  norm_forward_kernel<T, K, G>
      <<<static_cast<unsigned>(divide_up(in.rows, kRows)), G * kRows, 0, stream>>>(in);
}

}  // namespace

void norm_forward(const Norm& in, void* y, void* sum, float* mean, float* rstd, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "norm_forward", [&]<class T>() {
    const Forward<T> how{in.rows,
                         in.cols,
                         static_cast<const T*>(in.x),
                         static_cast<const T*>(in.residual),
                         weight_of(in),
                         bias_of(in),
                         in.eps,
                         in.centred,
                         static_cast<T*>(y),
                         static_cast<T*>(sum),
                         mean,
                         rstd};
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.residual) &&
                       is_aligned(in.weight) && is_aligned(in.bias) && is_aligned(y) &&
                       is_aligned(sum);
    const std::size_t packs = in.cols / kWide<T>;
    const cudaStream_t s = native(stream);
    if (!whole || packs > 512 * 8) {
      norm_forward_any_kernel<T><<<static_cast<unsigned>(in.rows), kAnyRow, 0, s>>>(how);
    } else if (packs <= 32 * 2) {
      start_norm_forward<T, 2, 32>(how, s);
    } else if (packs <= 32 * 4) {
      start_norm_forward<T, 4, 32>(how, s);
    } else if (packs <= 32 * 7) {
      start_norm_forward<T, 7, 32>(how, s);
    } else if (packs <= 128 * 4) {
      start_norm_forward<T, 4, 128>(how, s);
    } else if (packs <= 256 * 4) {
      start_norm_forward<T, 4, 256>(how, s);
    } else if (packs <= 256 * 8) {
      start_norm_forward<T, 8, 256>(how, s);
    } else {
      start_norm_forward<T, 8, 512>(how, s);
    }
    check_launch("norm_forward", in.rows, in.cols);
  });
}

void norm_again(const Norm& in, const float* mean, const float* rstd, void* y, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "norm_again", [&]<class T>() {
    Forward<T> how{};
    how.rows = in.rows;
    how.cols = in.cols;
    how.x = static_cast<const T*>(in.x);
    how.weight = weight_of(in);
    how.bias = bias_of(in);
    how.centred = in.centred;
    how.y = static_cast<T*>(y);
    how.mean = const_cast<float*>(mean);  // only read
    how.rstd = const_cast<float*>(rstd);
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.weight) &&
                       is_aligned(in.bias) && is_aligned(y);
    const Tiles tiles = make_tiles(in.rows, in.cols, whole ? kWide<T> : 1, false);
    const auto kernel = whole ? &norm_again_kernel<T, kWide<T>> : &norm_again_kernel<T, 1>;
    kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(tiles, how);
    check_launch("norm_again", in.rows, in.cols);
  });
}

}  // namespace tessera::kernels::cuda
