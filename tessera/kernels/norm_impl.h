// Sums of squares for one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include "tessera/kernels/optimizer.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr std::size_t partials = 16;

// Squares of fp32 are exact in fp64, so a fused multiply-add gives the same bits as separate ones.
template <class T>
TESSERA_INLINE void add_squares(V<double>* sums, const T* x) {
  TESSERA_UNROLL for (std::size_t k = 0; k < partials / lanes; ++k) {
    const F value = load(x + k * lanes);
    const V<double> lower = hn::PromoteTo(Tag<double>(), hn::LowerHalf(value));
#if HWY_TARGET == HWY_NEON
    const V<double> upper(vcvt_high_f64_f32(value.raw));
#else
    const V<double> upper =
        hn::PromoteTo(Tag<double>(), hn::UpperHalf(NarrowTag<float, double>(), value));
#endif
    sums[2 * k] = hn::MulAdd(lower, lower, sums[2 * k]);
    sums[2 * k + 1] = hn::MulAdd(upper, upper, sums[2 * k + 1]);
  }
}

template <class T>
double sum_of_squares(const T* x, std::size_t n) {
  V<double> sums[2 * partials / lanes];
  for (V<double>& sum : sums) sum = hn::Zero(Tag<double>());
  std::size_t at = 0;
  for (; at + partials <= n; at += partials) add_squares(sums, x + at);
  if (at < n) {
    T rest[partials] = {};
    __builtin_memcpy(rest, x + at, (n - at) * sizeof(T));
    add_squares(sums, rest);
  }
  double part[partials];
  TESSERA_UNROLL for (std::size_t k = 0; k < 2 * partials / lanes; ++k) {
    hn::StoreU(sums[k], Tag<double>(), part + k * lanes / 2);
  }
  for (std::size_t half = partials / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) part[i] += part[i + half];
  }
  return part[0];
}

double sum_of_squares(const void* x, Type type, std::size_t n) {
  return type == Type::f32 ? sum_of_squares(static_cast<const float*>(x), n)
                           : sum_of_squares(static_cast<const std::uint16_t*>(x), n);
}

template <class From, class To>
TESSERA_INLINE void convert(const From* from, To* to, std::size_t n) {
  each_vector(
      n, [&](std::size_t i, auto part) TESSERA_HERE { return load(from + i, part); }, Identity{},
      [&](std::size_t i, F x, auto part) TESSERA_HERE { store(to + i, x, part); });
}

void widen(const std::uint16_t* from, float* to, std::size_t n) { convert(from, to, n); }
void narrow(const float* from, std::uint16_t* to, std::size_t n) { convert(from, to, n); }

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
