// Vectors of fp32 for the kernels, on GCC's vector types. Internal.
//
// [Note: sets] Every *_impl.h is compiled once per instruction set: baseline.cpp, avx2.cpp and
// avx512.cpp define TESSERA_KERNEL_SET (a namespace) and TESSERA_KERNEL_BYTES (of a vector) and
// include them all. What they define is in an unnamed namespace, or two sets would be merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

#include "tessera/kernels/types.h"

#define TESSERA_INLINE static inline __attribute__((always_inline))
#define TESSERA_HERE __attribute__((always_inline))  // for lambdas

namespace tessera::kernels::TESSERA_KERNEL_SET {
namespace {

constexpr std::size_t lanes = TESSERA_KERNEL_BYTES / 4;

template <class T, std::size_t bytes>
struct VectorOf {
  typedef T type __attribute__((vector_size(bytes)));
};
using F = VectorOf<float, 4 * lanes>::type;
using U = VectorOf<std::uint32_t, 4 * lanes>::type;
using I = VectorOf<std::int32_t, 4 * lanes>::type;
using U64 = VectorOf<std::uint64_t, 4 * lanes>::type;
using Halves = VectorOf<std::uint16_t, 2 * lanes>::type;
using HalfF = VectorOf<float, 2 * lanes>::type;
using D = VectorOf<double, 4 * lanes>::type;

// Through a type that may lie anywhere and alias anything.
template <class T>
struct Anywhere {
  typedef T type __attribute__((aligned(1), may_alias));
};
template <class T>
TESSERA_INLINE T read(const void* from) {
  return *reinterpret_cast<const typename Anywhere<T>::type*>(from);
}
template <class T>
TESSERA_INLINE void write(void* to, T value) {
  *reinterpret_cast<typename Anywhere<T>::type*>(to) = value;
}

TESSERA_INLINE F splat(float x) { return F{} + x; }  // -0.0 becomes 0.0

// ---- memory: float, or std::uint16_t that holds bf16 ----

TESSERA_INLINE F load(const float* from) { return read<F>(from); }
TESSERA_INLINE F load(const std::uint16_t* from) {
#if defined(__aarch64__)
  return (F)vshll_n_u16(read<uint16x4_t>(from), 16);
#elif TESSERA_KERNEL_BYTES == 64
  return (F)((U)_mm512_cvtepu16_epi32(read<__m256i>(from)) << 16);
#elif TESSERA_KERNEL_BYTES == 32
  return (F)((U)_mm256_cvtepu16_epi32(read<__m128i>(from)) << 16);
#elif defined(__x86_64__)
  return (F)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i*)from));
#else
  return (F)(__builtin_convertvector(read<Halves>(from), U) << 16);
#endif
}
TESSERA_INLINE void store(float* to, F value) { write(to, value); }
TESSERA_INLINE void store_upper_half(std::uint16_t* to, U bits) {
#if defined(__aarch64__)
  write(to, vshrn_n_u32(bits, 16));
#elif TESSERA_KERNEL_BYTES == 64
  write(to, _mm512_cvtepi32_epi16((__m512i)(bits >> 16)));
#else
  write(to, __builtin_convertvector(bits >> 16, Halves));
#endif
}
TESSERA_INLINE U if_nan(F value, U bits) {  // keeps a NaN one when its lower half is dropped
  return value == value ? bits : (U)value | 0x00400000u;
}
TESSERA_INLINE void store(std::uint16_t* to, F value) {
  const U bits = (U)value;
  store_upper_half(to, if_nan(value, bits + ((bits >> 16) & 1) + 0x7fff));
}

// A whole vector, or the first n < lanes elements of one: loads fill the others with `fill`.
struct All {};
struct Some {
  std::size_t n;
};
template <class T>
TESSERA_INLINE F load(const T* from, All, float = 0) {
  return load(from);
}
template <class T>
TESSERA_INLINE F load(const T* from, Some some, float fill = 0) {
  T buffer[lanes];
  store(buffer, splat(fill));
  __builtin_memcpy(buffer, from, some.n * sizeof(T));
  return load(buffer);
}
template <class T>
TESSERA_INLINE void store(T* to, F value, All) {
  store(to, value);
}
template <class T>
TESSERA_INLINE void store(T* to, F value, Some some) {
  T buffer[lanes];
  store(buffer, value);
  __builtin_memcpy(to, buffer, some.n * sizeof(T));
}

// Vectors that are worked on at once. The processor cannot look far enough ahead to overlap long
// chains of instructions, and the compiler may not move a load before an earlier store.
#if defined(__aarch64__)
constexpr std::size_t ahead = 4;
#else
constexpr std::size_t ahead = 2;
#endif

// put(i, work(get(i, part)), part) for the vectors at i = 0, lanes, 2 lanes, … below n, where part
// is All, and Some for what is left at the end.
template <class Get, class Work, class Put>
TESSERA_INLINE void each_vector(std::size_t n, Get&& get, Work&& work, Put&& put) {
  std::size_t at = 0;
  for (; at + ahead * lanes <= n; at += ahead * lanes) {
    decltype(get(at, All{})) in[ahead];
    decltype(work(in[0])) out[ahead];
    _Pragma("GCC unroll 4") for (std::size_t k = 0; k < ahead; ++k) {
      in[k] = get(at + k * lanes, All{});
    }
    _Pragma("GCC unroll 4") for (std::size_t k = 0; k < ahead; ++k) out[k] = work(in[k]);
    _Pragma("GCC unroll 4") for (std::size_t k = 0; k < ahead; ++k) {
      put(at + k * lanes, out[k], All{});
    }
  }
  for (; at + lanes <= n; at += lanes) put(at, work(get(at, All{})), All{});
  if (at < n) put(at, work(get(at, Some{n - at})), Some{n - at});
}

// The work of passes that only read or convert. No lambda without captures does it: such a one can
// be made a function pointer, and GCC warns of vectors that cross that function's boundary.
struct Same {
  template <class T>
  inline __attribute__((always_inline)) T operator()(T x) const {
    return x;
  }
};

struct F2 {
  F a, b;
};
struct F3 {
  F a, b, c;
};

// f(a null pointer of the type in memory).
template <class Body>
TESSERA_INLINE void with_type(Type type, Body&& f) {
  if (type == Type::f32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<std::uint16_t*>(nullptr));
  }
}

// ---- arithmetic ----

// a · b + c: rounded once where the processor can.
TESSERA_INLINE F fma(F a, F b, F c) {
#if defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#elif TESSERA_KERNEL_BYTES == 64
  return (F)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif TESSERA_KERNEL_BYTES == 32
  return (F)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}
TESSERA_INLINE F fma(F a, float b, F c) { return fma(a, splat(b), c); }
TESSERA_INLINE F fma(F a, F b, float c) { return fma(a, b, splat(c)); }
TESSERA_INLINE F fma(F a, float b, float c) { return fma(a, splat(b), splat(c)); }

TESSERA_INLINE F sqrt(F x) {
#if defined(__aarch64__)
  return vsqrtq_f32(x);
#elif TESSERA_KERNEL_BYTES == 64
  return (F)_mm512_sqrt_ps((__m512)x);
#elif TESSERA_KERNEL_BYTES == 32
  return (F)_mm256_sqrt_ps((__m256)x);
#elif defined(__x86_64__)
  return (F)_mm_sqrt_ps((__m128)x);
#else
  for (std::size_t i = 0; i < lanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

// A NaN in b stays; what one in a does depends on the processor.
TESSERA_INLINE F max(F a, F b) {
#if defined(__aarch64__)
  return vmaxq_f32(a, b);
#else
  return a > b ? a : b;
#endif
}
TESSERA_INLINE F min(F a, F b) {
#if defined(__aarch64__)
  return vminq_f32(a, b);
#else
  return a < b ? a : b;
#endif
}

// 1 / x for positive x, to a bit or two.
TESSERA_INLINE F reciprocal(F x) {
#if defined(__aarch64__)  // division has one pipe, and keeps it busy
  F y = vrecpeq_f32(x);
  y *= vrecpsq_f32(x, y);
  y *= vrecpsq_f32(x, y);
  return y;
#else
  return 1.0f / x;
#endif
}

template <class Combine>
TESSERA_INLINE float across(F x, Combine&& combine) {
  float part[lanes];
  store(part, x);
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) part[i] = combine(part[i], part[i + half]);
  }
  return part[0];
}
TESSERA_INLINE float add_across(F x) {
  return across(x, [](float a, float b) { return a + b; });
}
TESSERA_INLINE float max_across(F x) {
  return across(x, [](float a, float b) { return a > b ? a : b; });
}

// x = n · ln 2 + r with |r| ≤ ln 2 / 2: e^r within an ulp or so. n is in the low bits of `shifted`.
constexpr float magic = 0x1.8p23f;
TESSERA_INLINE F exp_rest(F x, F& shifted) {
  shifted = fma(x, 0x1.715476p0f, magic);
  const F whole = shifted - magic;
  F r = fma(whole, -0x1.62e4p-1f, x);  // 15 bits: exact products
  r = fma(whole, -0x1.7f7d1cp-20f, r);
  // The polynomial of degree 6 whose greatest relative error is least: 2e-9, and 2e-8 in fp32.
  F p = fma(r, 0x1.6ab96ep-10f, 0x1.126d1ep-7f);
  p = fma(p, r, 0x1.55589ap-5f);
  p = fma(p, r, 0x1.55540ap-3f);
  p = fma(p, r, 0x1.fffffap-2f);
  p = fma(p, r, 1.0f);
  return fma(p, r, 1.0f);
}

// NaN for NaN; 2^n is a factor, not added to the exponent, so that it stays one. Infinity from 88.4
// on, which is a little early; below -87.3 it stays at e^-87.3.
TESSERA_INLINE F exp(F x) {
  F shifted;
  const F e = exp_rest(min(splat(88.8f), max(splat(-87.3f), x)), shifted);
  return e * (F)(((U)shifted << 23) + 0x3f800000u);
}

// For x ≤ 0; 0 below -87.3.
TESSERA_INLINE F exp_negative(F x) {
  F shifted;
  const F e = exp_rest(max(splat(-87.3f), x), shifted);
  const F scaled = e * (F)(((U)shifted << 23) + 0x3f800000u);
  return (F)((I)scaled & ~(I)(x < -87.3f));
}

}  // namespace
}  // namespace tessera::kernels::TESSERA_KERNEL_SET
