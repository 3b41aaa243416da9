// Sums of squares for one instruction set: see [Note: sets] in simd.h.
#pragma once

#include "tessera/kernels/norm.h"
#include "tessera/kernels/simd.h"

namespace tessera::kernels::TESSERA_KERNEL_SET {
namespace {

constexpr std::size_t partials = 16;

// Squares of fp32 are exact in fp64, so it does not matter whether they are fused with the sum.
template <class T>
TESSERA_INLINE void add_squares(D* sums, const T* x) {
  struct Pair {
    HalfF part[2];
  };
  _Pragma("GCC unroll 4") for (std::size_t k = 0; k < partials / lanes; ++k) {
    const Pair pair = __builtin_bit_cast(Pair, load(x + k * lanes));
    for (std::size_t h = 0; h < 2; ++h) {
      const D wide = __builtin_convertvector(pair.part[h], D);
      sums[2 * k + h] += wide * wide;
    }
  }
}

template <class T>
double sum_of_squares(const T* x, std::size_t n) {
  D sums[2 * partials / lanes] = {};
  std::size_t at = 0;
  for (; at + partials <= n; at += partials) add_squares(sums, x + at);
  if (at < n) {
    T rest[partials] = {};
    __builtin_memcpy(rest, x + at, (n - at) * sizeof(T));
    add_squares(sums, rest);
  }
  double part[partials];
  __builtin_memcpy(part, sums, sizeof part);
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
      n, [&](std::size_t i, auto part) TESSERA_HERE { return load(from + i, part); }, Same{},
      [&](std::size_t i, F x, auto part) TESSERA_HERE { store(to + i, x, part); });
}

void widen(const std::uint16_t* from, float* to, std::size_t n) { convert(from, to, n); }
void narrow(const float* from, std::uint16_t* to, std::size_t n) { convert(from, to, n); }

}  // namespace
}  // namespace tessera::kernels::TESSERA_KERNEL_SET
