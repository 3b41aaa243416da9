// Layer norm for one instruction set: see [Note: sets] in simd.h.
#pragma once

#include <cmath>

#include "tessera/kernels/layers.h"
#include "tessera/kernels/simd.h"

namespace tessera::kernels::TESSERA_KERNEL_SET {
namespace {

// The first n lanes of x, 0 in the others.
TESSERA_INLINE F only(F x, All) { return x; }
TESSERA_INLINE F only(F x, Some some) {
  float buffer[lanes] = {};
  store(buffer, x, some);
  return load(buffer);
}

// Mean, then variance about it, then the result: the row stays in the first cache.
template <class T>
void layer_norm_forward(const LayerNorm& in, T* y, T* sum, float* mean, float* rstd) {
  const std::size_t n = in.cols;
  const T* x = static_cast<const T*>(in.x);
  const T* residual = static_cast<const T*>(in.residual);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const T* s = x + r * n;
    F total{};
    if (residual != nullptr) {
      const T* other = residual + r * n;
      T* to = sum + r * n;
      each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
        store(to + i, load(s + i, part) + load(other + i, part), part);
        total += load(to + i, part);  // as rounded: backward sees only that
      });
      s = to;
    } else {
      each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE { total += load(s + i, part); });
    }
    const float middle = add_across(total) / static_cast<float>(n);
    F squares{};
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      const F d = only(load(s + i, part) - middle, part);
      squares = fma(d, d, squares);
    });
    const float variance = add_across(squares) / static_cast<float>(n);
    const float scale = 1.0f / __builtin_sqrtf(variance + in.eps);
    T* out = y + r * n;
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      const F normal = (load(s + i, part) - middle) * scale;
      store(out + i, fma(normal, load(in.weight + i, part), load(in.bias + i, part)), part);
    });
    mean[r] = middle;
    rstd[r] = scale;
  }
}

// With z = (s - mean) · rstd and g = dy · weight: ds = rstd · (g - mean(g) - z · mean(g · z)).
template <class T>
void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const T* dy,
                         const T* dsum, T* dx, float* dweight, float* dbias) {
  const std::size_t n = in.cols;
  const T* x = static_cast<const T*>(in.x);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const T* s = x + r * n;
    const T* d = dy + r * n;
    const float middle = mean[r], scale = rstd[r];
    F g_total{}, gz_total{};
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      const F z = (load(s + i, part) - middle) * scale;
      const F up = load(d + i, part);
      const F g = up * load(in.weight + i, part);  // 0 beyond the end
      g_total += g;
      gz_total = fma(g, z, gz_total);
      store(dweight + i, fma(up, z, load(dweight + i, part)), part);
      store(dbias + i, load(dbias + i, part) + up, part);
    });
    const float g_mean = add_across(g_total) / static_cast<float>(n);
    const float gz_mean = add_across(gz_total) / static_cast<float>(n);
    T* out = dx + r * n;
    const T* past = dsum == nullptr ? nullptr : dsum + r * n;
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      const F z = (load(s + i, part) - middle) * scale;
      const F g = load(d + i, part) * load(in.weight + i, part);
      F result = fma(z, -gz_mean, g - g_mean) * scale;
      if (past != nullptr) result += load(past + i, part);
      store(out + i, result, part);
    });
  }
}

void layer_norm_forward(const LayerNorm& in, void* y, void* sum, float* mean, float* rstd) {
  with_type(in.type, [&](auto* t) {
    using P = decltype(t);
    layer_norm_forward(in, static_cast<P>(y), static_cast<P>(sum), mean, rstd);
  });
}

void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const void* dy,
                         const void* dsum, void* dx, float* dweight, float* dbias) {
  with_type(in.type, [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    layer_norm_backward(in, mean, rstd, static_cast<const T*>(dy), static_cast<const T*>(dsum),
                        static_cast<T*>(dx), dweight, dbias);
  });
}

}  // namespace
}  // namespace tessera::kernels::TESSERA_KERNEL_SET
