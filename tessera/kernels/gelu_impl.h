// GELU for one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include "tessera/kernels/layers.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// gelu(x) = x/2 · (1 + tanh u) = x · s with s = 1 / (1 + exp(-2u)), u = √(2/π) · (x + 0.044715 x³).
constexpr float gelu_a = 0x1.988454p0f;        // 2 √(2/π)
constexpr float gelu_b = 0.044715f * gelu_a;   // factor of the cube
constexpr float gelu_b3 = 0.134145f * gelu_a;  // factor of its derivative

TESSERA_INLINE F gelu_gate(F x, F square) {
  const F minus_2u = x * fma(square, -gelu_b, -gelu_a);
  return 1.0f / (1.0f + exp(minus_2u));
}

TESSERA_INLINE F gelu(F x) { return x * gelu_gate(x, x * x); }

// The slope is 0 or 1 beyond ±15. Clamping avoids infinities in the formula.
TESSERA_INLINE F gelu_slope(F x) {
  x = min(splat(15.0f), max(splat(-15.0f), x));
  const F square = x * x;
  const F gate = gelu_gate(x, square);
  const F slope_2u = fma(square, gelu_b3, gelu_a);
  return fma(x * slope_2u, gate * (1.0f - gate), gate);
}

template <class T>
void gelu_forward(const Gelu& in, T* y) {
  const T* x = static_cast<const T*>(in.x);
  const auto work = [&](F value) TESSERA_HERE { return gelu(value); };
  const auto put = [&](std::size_t i, F value, auto part)
                       TESSERA_HERE { store(y + i, value, part); };
  if (in.bias == nullptr) {
    each_vector(
        in.rows * in.cols, [&](std::size_t i, auto part) TESSERA_HERE { return load(x + i, part); },
        work, put);
    return;
  }
  for (std::size_t r = 0; r < in.rows; ++r, x += in.cols, y += in.cols) {
    each_vector(
        in.cols,
        [&](std::size_t i, auto part)
            TESSERA_HERE { return load(x + i, part) + load(in.bias + i, part); },
        work, put);
  }
}

template <class T>
void gelu_backward(const Gelu& in, const T* dy, T* dx, float* dbias) {
  const T* x = static_cast<const T*>(in.x);
  const auto work = [&](F2 f) TESSERA_HERE { return f.b * gelu_slope(f.a); };
  if (in.bias == nullptr && dbias == nullptr) {
    each_vector(
        in.rows * in.cols,
        [&](std::size_t i, auto part) TESSERA_HERE {
          return F2{load(x + i, part), load(dy + i, part)};
        },
        work, [&](std::size_t i, F d, auto part) TESSERA_HERE { store(dx + i, d, part); });
    return;
  }
  for (std::size_t r = 0; r < in.rows; ++r, x += in.cols, dy += in.cols, dx += in.cols) {
    each_vector(
        in.cols,
        [&](std::size_t i, auto part) TESSERA_HERE {
          F value = load(x + i, part);
          if (in.bias != nullptr) value += load(in.bias + i, part);
          return F2{value, load(dy + i, part)};
        },
        work,
        [&](std::size_t i, F d, auto part) TESSERA_HERE {
          store(dx + i, d, part);
          if (dbias != nullptr) store(dbias + i, load(dbias + i, part) + d, part);
        });
  }
}

void gelu_forward(const Gelu& in, void* y) {
  with_type(in.type, [&](auto* t) { gelu_forward(in, static_cast<decltype(t)>(y)); });
}

void gelu_backward(const Gelu& in, const void* dy, void* dx, float* dbias) {
  with_type(in.type, [&](auto* t) {
    using P = decltype(t);
    gelu_backward(in, static_cast<const std::remove_pointer_t<P>*>(dy), static_cast<P>(dx), dbias);
  });
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
