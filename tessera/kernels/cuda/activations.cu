#include "tessera/kernels/cuda/columns.cuh"
#include "tessera/kernels/cuda/layers.h"

namespace tessera::kernels::cuda {
namespace {

constexpr float kSqrt8OverPi = 1.5957691216057308f;  // 2 · sqrt(2 / pi)
constexpr float kCubic = 0.044715f;

// The tanh approximation is x · gate with gate = (1 + tanh u) / 2 = sigmoid(2u), which does not
// lose precision where tanh u is near -1.
template <class T>
__device__ __forceinline__ float gelu_gate(float x) {
  return sigmoid_for<T>(kSqrt8OverPi * x * (1.0f + kCubic * x * x));
}

__device__ __forceinline__ float gelu_slope(float x, float gate) {
  // Far from 0 the gate is 0 or 1 and the second term vanishes, provided that the square does not
  // overflow.
  const float near = fminf(fmaxf(x, -100.0f), 100.0f);
  const float inner = kSqrt8OverPi * (1.0f + 3.0f * kCubic * near * near);
  return gate + near * gate * (1.0f - gate) * inner;
}

// Exponentials take more than half as long as the memory accesses, so the next rows are loaded
// while these are computed. There are as many blocks as fit on the GPU at once, and they share all
// rows.
constexpr int kGeluRows = 2;         // rows processed together
constexpr int kGeluBlocksPerSm = 5;  // blocks per SM
constexpr std::size_t kGeluStep = kGeluRows * kTileRows;

template <class T, int V, bool Largest>
__global__ void __launch_bounds__(32 * kTileRows, kGeluBlocksPerSm)
    gelu_forward_kernel(Tiles tiles, std::size_t cols, const T* x, Columnwise bias, T* y,
                        float* largest) {
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  if (pack >= tiles.packs) return;
  x += pack * V;
  y += pack * V;
  Pack<T, V> next[kGeluRows];
  const auto read = [&](std::size_t row) {
#pragma unroll
    for (int u = 0; u < kGeluRows; ++u) {
      const std::size_t r = row + u * kTileRows;
      next[u] = r < end ? Pack<T, V>::load(x + r * cols) : Pack<T, V>::zero();
    }
  };
  read(tiles.first_row());
  float b[V], top = 0;
  bias.get(pack * V, b);
  for (std::size_t row = tiles.first_row(); row < end; row += kGeluStep) {
    Pack<T, V> packs[kGeluRows];
#pragma unroll
    for (int u = 0; u < kGeluRows; ++u) packs[u] = next[u];
    read(row + kGeluStep);
#pragma unroll
    for (int u = 0; u < kGeluRows; ++u) {
      const std::size_t r = row + u * kTileRows;
      float v[V];
      packs[u].get(v);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float at = v[i] + b[i];
        v[i] = at * gelu_gate<T>(at);
        if (Largest && r < end) top = fmaxf(top, fabsf(v[i]));
      }
      if (r < end) Pack<T, V>::of(v).store(y + r * cols);
    }
  }
  if constexpr (Largest) raise_largest<T>(largest, top);
}

template <class T, int V, bool Recompute, bool Sums>
__global__ void __launch_bounds__(32 * kTileRows)
    gelu_backward_kernel(Tiles tiles, std::size_t cols, const T* x, Columnwise bias, const T* dy,
                         T* dx, T* y, float* scratch, float* largest) {
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  const bool inside = pack < tiles.packs;
  float b[V] = {}, sums[V] = {}, top = 0;
  if (inside) bias.get(pack * V, b);
  x += pack * V;
  dy += pack * V;
  dx += pack * V;
  if constexpr (Recompute) y += pack * V;
  for (std::size_t row = tiles.first_row(); row < end; row += kTileStep) {
    Pack<T, V> at[kRowsAtOnce], up[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      const bool here = inside && r < end;
      at[u] = here ? Pack<T, V>::load(x + r * cols) : Pack<T, V>::zero();
      up[u] = here ? Pack<T, V>::load(dy + r * cols) : Pack<T, V>::zero();
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      float v[V], d[V];
      at[u].get(v);
      up[u].get(d);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float z = v[i] + b[i], gate = gelu_gate<T>(z);
        d[i] *= gelu_slope(z, gate);
        top = fmaxf(top, fabsf(d[i]));  // zeros outside
        v[i] = z * gate;
        if constexpr (Sums) sums[i] += d[i];
      }
      if (inside && r < end) {
        Pack<T, V>::of(d).store(dx + r * cols);
        if constexpr (Recompute) Pack<T, V>::of(v).store(y + r * cols);
      }
    }
  }
  raise_largest<T>(largest, top);
  if constexpr (Sums) store_partial_sums<V>(tiles, cols, sums, scratch);
}

template <class T, int V>
__global__ void __launch_bounds__(32 * kTileRows)
    swiglu_forward_kernel(Tiles tiles, std::size_t cols, const T* x, T* y, float* largest) {
  float top = 0;
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  if (pack >= tiles.packs) return;
  x += pack * V;
  y += pack * V;
  for (std::size_t row = tiles.first_row(); row < end; row += kTileStep) {
    Pack<T, V> gates[kRowsAtOnce], values[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      const bool here = r < end;
      gates[u] = here ? Pack<T, V>::load(x + 2 * r * cols) : Pack<T, V>::zero();
      values[u] = here ? Pack<T, V>::load(x + 2 * r * cols + cols) : Pack<T, V>::zero();
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      float g[V], v[V];
      gates[u].get(g);
      values[u].get(v);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        v[i] *= g[i] * sigmoid_for<T>(g[i]);
        top = fmaxf(top, fabsf(v[i]));  // zeros beyond the last row
      }
      if (r < end) Pack<T, V>::of(v).store(y + r * cols);
    }
  }
  raise_largest<T>(largest, top);
}

template <class T, int V, bool Recompute>
__global__ void __launch_bounds__(32 * kTileRows)
    swiglu_backward_kernel(Tiles tiles, std::size_t cols, const T* x, const T* dy, T* dx, T* y,
                           float* largest) {
  float top = 0;
  const std::size_t pack = tiles.pack(), end = tiles.end_row();
  if (pack >= tiles.packs) return;
  x += pack * V;
  dy += pack * V;
  dx += pack * V;
  if constexpr (Recompute) y += pack * V;
  for (std::size_t row = tiles.first_row(); row < end; row += kTileStep) {
    Pack<T, V> gates[kRowsAtOnce], values[kRowsAtOnce], up[kRowsAtOnce];
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      const bool here = r < end;
      gates[u] = here ? Pack<T, V>::load(x + 2 * r * cols) : Pack<T, V>::zero();
      values[u] = here ? Pack<T, V>::load(x + 2 * r * cols + cols) : Pack<T, V>::zero();
      up[u] = here ? Pack<T, V>::load(dy + r * cols) : Pack<T, V>::zero();
    }
#pragma unroll
    for (int u = 0; u < kRowsAtOnce; ++u) {
      const std::size_t r = row + u * kTileRows;
      if (r >= end) break;
      float g[V], v[V], d[V], output[V];
      gates[u].get(g);
      values[u].get(v);
      up[u].get(d);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float open = sigmoid_for<T>(g[i]), silu = g[i] * open;
        output[i] = silu * v[i];
        g[i] = d[i] * v[i] * open * (1.0f + g[i] * (1.0f - open));
        v[i] = d[i] * silu;
        top = fmaxf(top, fmaxf(fabsf(g[i]), fabsf(v[i])));
      }
      Pack<T, V>::of(g).store(dx + 2 * r * cols);
      Pack<T, V>::of(v).store(dx + 2 * r * cols + cols);
      if constexpr (Recompute) Pack<T, V>::of(output).store(y + r * cols);
    }
  }
  raise_largest<T>(largest, top);
}

template <class T, int V>
void gelu_backward_as(const Gelu& in, const void* dy, void* dx, void* y, bool sums, float* scratch,
                      const Tiles& tiles, Stream stream) {
  const auto kernel = y == nullptr ? (sums ? &gelu_backward_kernel<T, V, false, true>
                                           : &gelu_backward_kernel<T, V, false, false>)
                                   : (sums ? &gelu_backward_kernel<T, V, true, true>
                                           : &gelu_backward_kernel<T, V, true, false>);
  kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(
      tiles, in.cols, static_cast<const T*>(in.x), Columnwise{in.bias, in.bias_type},
      static_cast<const T*>(dy), static_cast<T*>(dx), static_cast<T*>(y), scratch, in.largest);
  check_launch("gelu_backward", in.rows, in.cols);
}

}  // namespace

void gelu_forward(const Gelu& in, void* y, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "gelu_forward", [&]<class T>() {
    const bool whole =
        in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.bias) && is_aligned(y);
    const Tiles tiles = make_long_tiles(in.rows, in.cols, whole ? kWide<T> : 1, kGeluStep,
                                        sm_count() * kGeluBlocksPerSm);
    const bool top = in.largest != nullptr;
    const auto kernel =
        whole ? (top ? &gelu_forward_kernel<T, kWide<T>, true>
                     : &gelu_forward_kernel<T, kWide<T>, false>)
              : (top ? &gelu_forward_kernel<T, 1, true> : &gelu_forward_kernel<T, 1, false>);
    kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(
        tiles, in.cols, static_cast<const T*>(in.x), Columnwise{in.bias, in.bias_type},
        static_cast<T*>(y), in.largest);
    check_launch("gelu_forward", in.rows, in.cols);
  });
}

void gelu_backward(const Gelu& in, const void* dy, void* dx, void* y, Sink dbias, float* scratch,
                   Stream stream) {
  if (in.cols == 0) return;
  with_type(in.type, "gelu_backward", [&]<class T>() {
    const bool sums = dbias.to != nullptr;
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(in.bias) &&
                       is_aligned(dy) && is_aligned(dx) && is_aligned(y);
    const Tiles tiles = make_tiles(in.rows, in.cols, whole ? kWide<T> : 1, sums);
    if (tiles.groups > 0) {
      whole ? gelu_backward_as<T, kWide<T>>(in, dy, dx, y, sums, scratch, tiles, stream)
            : gelu_backward_as<T, 1>(in, dy, dx, y, sums, scratch, tiles, stream);
    }
    finish_columns(scratch, tiles.groups, {in.cols, 1, {dbias}}, stream);
  });
}

void swiglu_forward(const SwiGlu& in, void* y, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "swiglu_forward", [&]<class T>() {
    const bool whole = in.cols % kWide<T> == 0 && is_aligned(in.x) && is_aligned(y);
    const Tiles tiles = make_tiles(in.rows, in.cols, whole ? kWide<T> : 1, false);
    const auto kernel = whole ? &swiglu_forward_kernel<T, kWide<T>> : &swiglu_forward_kernel<T, 1>;
    kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(
        tiles, in.cols, static_cast<const T*>(in.x), static_cast<T*>(y), in.largest);
    check_launch("swiglu_forward", in.rows, in.cols);
  });
}

void swiglu_backward(const SwiGlu& in, const void* dy, void* dx, void* y, Stream stream) {
  if (in.rows == 0 || in.cols == 0) return;
  with_type(in.type, "swiglu_backward", [&]<class T>() {
    constexpr int W = kWide<T>;
    const bool whole =
        in.cols % W == 0 && is_aligned(in.x) && is_aligned(dy) && is_aligned(dx) && is_aligned(y);
    const Tiles tiles = make_tiles(in.rows, in.cols, whole ? W : 1, false);
    const auto kernel =
        y == nullptr
            ? (whole ? &swiglu_backward_kernel<T, W, false> : &swiglu_backward_kernel<T, 1, false>)
            : (whole ? &swiglu_backward_kernel<T, W, true> : &swiglu_backward_kernel<T, 1, true>);
    kernel<<<tiles.grid(), tiles.block(), 0, native(stream)>>>(
        tiles, in.cols, static_cast<const T*>(in.x), static_cast<const T*>(dy), static_cast<T*>(dx),
        static_cast<T*>(y), in.largest);
    check_launch("swiglu_backward", in.rows, in.cols);
  });
}

}  // namespace tessera::kernels::cuda
