// Layer norm for one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include <cmath>

#include "tessera/kernels/layers.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// Keeps the first n lanes of x and zeroes the others.
TESSERA_INLINE F only(F x, All) { return x; }
TESSERA_INLINE F only(F x, Some some) {
  float buffer[lanes] = {};
  store(buffer, x, some);
  return load(buffer);
}

// Mean, then variance about it, then the result. The row stays in the L1 cache.
template <class T>
void layer_norm_forward(const LayerNorm& in, T* y, T* sum, float* mean, float* rstd) {
  const std::size_t n = in.cols;
  const T* x = static_cast<const T*>(in.x);
  const T* residual = static_cast<const T*>(in.residual);
  for (std::size_t r = 0; r < in.rows; ++r) {
    const T* s = x + r * n;
    F total = zero();
    if (residual != nullptr) {
      const T* other = residual + r * n;
      T* to = sum + r * n;
      each_vector(
          n,
          [&](std::size_t i, auto part)
              TESSERA_HERE { return load(s + i, part) + load(other + i, part); },
          Identity{},
          [&](std::size_t i, F value, auto part) TESSERA_HERE {
            store(to + i, value, part);
            total += load(to + i, part);  // sums the rounded value, which is all that backward sees
          });
      s = to;
    } else {
      each_vector(
          n, [&](std::size_t i, auto part) TESSERA_HERE { return load(s + i, part); }, Identity{},
          [&](std::size_t, F value, auto) TESSERA_HERE { total += value; });
    }
    const float middle = add_across(total) / static_cast<float>(n);
    F squares = zero();
    each_vector(
        n, [&](std::size_t i, auto part) TESSERA_HERE { return load(s + i, part); }, Identity{},
        [&](std::size_t, F value, auto part) TESSERA_HERE {
          const F d = only(value - middle, part);
          squares = fma(d, d, squares);
        });
    const float variance = add_across(squares) / static_cast<float>(n);
    const float scale = 1.0f / __builtin_sqrtf(variance + in.eps);
    T* out = y + r * n;
    each_vector(
        n,
        [&](std::size_t i, auto part) TESSERA_HERE {
          return F3{load(s + i, part), load(in.weight + i, part), load(in.bias + i, part)};
        },
        [&](F3 f) TESSERA_HERE { return fma((f.a - middle) * scale, f.b, f.c); },
        [&](std::size_t i, F value, auto part) TESSERA_HERE { store(out + i, value, part); });
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
    const auto get = [&](std::size_t i, auto part) TESSERA_HERE {
      return F3{load(s + i, part), load(d + i, part), load(in.weight + i, part)};
    };
    F g_total = zero(), gz_total = zero();
    each_vector(
        n, get,
        [&](F3 f) TESSERA_HERE {
          return F3{(f.a - middle) * scale, f.b, f.b * f.c};
        },
        [&](std::size_t i, F3 f, auto part) TESSERA_HERE {
          g_total += f.c;  // 0 beyond the end
          // (0 - mean) · rstd may be infinite beyond the end, and infinity times 0 is NaN.
          gz_total = fma(f.c, only(f.a, part), gz_total);
          store(dweight + i, fma(f.b, f.a, load(dweight + i, part)), part);
          store(dbias + i, load(dbias + i, part) + f.b, part);
        });
    const float g_mean = add_across(g_total) / static_cast<float>(n);
    const float gz_mean = add_across(gz_total) / static_cast<float>(n);
    T* out = dx + r * n;
    const T* past = dsum == nullptr ? nullptr : dsum + r * n;
    each_vector(
        n, get,
        [&](F3 f) TESSERA_HERE {
          return fma((f.a - middle) * scale, splat(-gz_mean), f.b * f.c - g_mean) * scale;
        },
        [&](std::size_t i, F value, auto part) TESSERA_HERE {
          if (past != nullptr) value += load(past + i, part);
          store(out + i, value, part);
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
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
