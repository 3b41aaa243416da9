// Building blocks shared by the kernels: fp32 vectors over fp32 or bf16 memory, loops over them,
// and exponentials. Internal; see [Note: sets] in core/simd.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tessera/core/simd.h"
#include "tessera/kernels/types.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

using namespace tessera::HWY_NAMESPACE;

constexpr std::size_t lanes = lanes_of<float>;
constexpr Tag<float> floats;
constexpr Tag<std::uint32_t> words;

TESSERA_INLINE F zero() { return hn::Zero(floats); }

// ---- memory: float, or std::uint16_t that holds bf16 ----

TESSERA_INLINE F load(const float* from) { return hn::LoadU(floats, from); }
TESSERA_INLINE F load(const std::uint16_t* from) {
  return widen_bf16(hn::LoadU(NarrowTag<std::uint16_t, float>(), from));
}
TESSERA_INLINE void store(float* to, F value) { hn::StoreU(value, floats, to); }
TESSERA_INLINE void store_upper_half(std::uint16_t* to, U bits) {
  hn::StoreU(upper_half(bits), NarrowTag<std::uint16_t, float>(), to);
}
TESSERA_INLINE U bits_or_nan(F value, U bits) {  // a NaN stays a NaN when its lower half is dropped
  const U quiet = hn::Or(as_bits(value), splat<std::uint32_t>(0x00400000u));
  return hn::IfThenElse(hn::RebindMask(words, value == value), bits, quiet);
}
TESSERA_INLINE void store(std::uint16_t* to, F value) {
  store_upper_half(to, bits_or_nan(value, round_to_bf16(as_bits(value))));
}

// All selects a whole vector, Some its first n < lanes elements; a load sets the other lanes to
// `fill`. A sum over lanes needs a fill whose contribution is 0 in every row, because multiplying
// by 0 later does not cancel an infinity.
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
template <class T>
TESSERA_INLINE float load_one(const T* from) {
  return hn::GetLane(load(from, Some{1}));
}

// Number of vectors processed together. The processor's reorder window is too short to overlap long
// dependency chains, and the compiler may not move a load before an earlier store.
#if HWY_TARGET == HWY_NEON
constexpr std::size_t unroll = 4;
#else
constexpr std::size_t unroll = 2;
#endif

// Calls put(i, work(get(i, part)), part) for the vectors at i = 0, lanes, 2 lanes, … below n.
// `part` is All for whole vectors and Some for the remainder at the end.
template <class Get, class Work, class Put>
TESSERA_INLINE void each_vector(std::size_t n, Get&& get, Work&& work, Put&& put) {
  std::size_t at = 0;
  for (; at + unroll * lanes <= n; at += unroll * lanes) {
    decltype(get(at, All{})) in[unroll];
    decltype(work(in[0])) out[unroll];
    TESSERA_UNROLL for (std::size_t k = 0; k < unroll; ++k) in[k] = get(at + k * lanes, All{});
    TESSERA_UNROLL for (std::size_t k = 0; k < unroll; ++k) out[k] = work(in[k]);
    TESSERA_UNROLL for (std::size_t k = 0; k < unroll; ++k) put(at + k * lanes, out[k], All{});
  }
  for (; at + lanes <= n; at += lanes) put(at, work(get(at, All{})), All{});
  if (at < n) put(at, work(get(at, Some{n - at})), Some{n - at});
}

// Identity, for passes that only read or convert. A lambda without captures does not work here: it
// converts to a function pointer, and GCC warns about vector arguments across that function's ABI.
struct Identity {
  template <class T>
  inline __attribute__((always_inline)) T operator()(T x) const {
    return x;
  }
};

// Two or three vectors as one value.
struct F2 {
  F a, b;
  HWY_INLINE F2() {}
  HWY_INLINE F2(F a, F b) : a(a), b(b) {}
};
struct F3 {
  F a, b, c;
  HWY_INLINE F3() {}
  HWY_INLINE F3(F a, F b, F c) : a(a), b(b), c(c) {}
};

// Calls f with a null pointer to the element type in memory.
template <class Body>
TESSERA_INLINE void with_type(Type type, Body&& f) {
  if (type == Type::f32) {
    f(static_cast<float*>(nullptr));
  } else {
    f(static_cast<std::uint16_t*>(nullptr));
  }
}

// ---- arithmetic ----

TESSERA_INLINE F operator*(F a, float b) { return a * splat(b); }
TESSERA_INLINE F operator-(F a, float b) { return a - splat(b); }
TESSERA_INLINE F operator-(float a, F b) { return splat(a) - b; }
TESSERA_INLINE F operator+(float a, F b) { return splat(a) + b; }
TESSERA_INLINE F operator/(float a, F b) { return splat(a) / b; }
TESSERA_INLINE F& operator*=(F& a, float b) { return a = a * b; }

// a · b + c, rounded once if the processor has FMA.
TESSERA_INLINE F fma(F a, F b, F c) { return hn::MulAdd(a, b, c); }
TESSERA_INLINE F fma(F a, float b, F c) { return fma(a, splat(b), c); }
TESSERA_INLINE F fma(F a, F b, float c) { return fma(a, b, splat(c)); }
TESSERA_INLINE F fma(F a, float b, float c) { return fma(a, splat(b), splat(c)); }

TESSERA_INLINE F sqrt(F x) { return hn::Sqrt(x); }

// Propagates a NaN in b. The result for a NaN in a depends on the processor.
TESSERA_INLINE F max(F a, F b) {
#if HWY_TARGET == HWY_NEON  // Highway's own drops a NaN
  return F(vmaxq_f32(a.raw, b.raw));
#else
  return hn::Max(a, b);
#endif
}
TESSERA_INLINE F min(F a, F b) {
#if HWY_TARGET == HWY_NEON
  return F(vminq_f32(a.raw, b.raw));
#else
  return hn::Min(a, b);
#endif
}

// Returns 1 / x for positive x, accurate to a bit or two.
TESSERA_INLINE F reciprocal(F x) {
#if HWY_TARGET == HWY_NEON  // division occupies the only divider
  F y = hn::ApproximateReciprocal(x);
  y = y * F(vrecpsq_f32(x.raw, y.raw));
  return y * F(vrecpsq_f32(x.raw, y.raw));
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

// Splits x = n · ln 2 + r with |r| ≤ ln 2 / 2 and returns e^r to about an ulp. n is in the low bits
// of `shifted`.
constexpr float magic = 0x1.8p23f;
TESSERA_INLINE F exp_rest(F x, F& shifted) {
  shifted = fma(x, 0x1.715476p0f, magic);
  const F whole = shifted - magic;
  F r = fma(whole, -0x1.62e4p-1f, x);  // 15 bits: exact products
  r = fma(whole, -0x1.7f7d1cp-20f, r);
  // Minimax polynomial of degree 6: relative error 2e-9, and 2e-8 when evaluated in fp32.
  F p = fma(r, 0x1.6ab96ep-10f, 0x1.126d1ep-7f);
  p = fma(p, r, 0x1.55589ap-5f);
  p = fma(p, r, 0x1.55540ap-3f);
  p = fma(p, r, 0x1.fffffap-2f);
  p = fma(p, r, 1.0f);
  return fma(p, r, 1.0f);
}
TESSERA_INLINE F power_of_two(F shifted) {
  return as_floats(hn::ShiftLeft<23>(as_bits(shifted)) + splat<std::uint32_t>(0x3f800000u));
}

// Returns NaN for NaN: 2^n is multiplied, not added to the exponent, so a NaN stays a NaN. Returns
// infinity from 88.4 on, slightly early. Below -87.3 the result stays at e^-87.3.
TESSERA_INLINE F exp(F x) {
  F shifted;
  const F e = exp_rest(min(splat(88.8f), max(splat(-87.3f), x)), shifted);
  return e * power_of_two(shifted);
}

// exp for x ≤ 0. Returns 0 below -87.3.
TESSERA_INLINE F exp_negative(F x) {
  F shifted;
  const F e = exp_rest(max(splat(-87.3f), x), shifted);
  return hn::IfThenZeroElse(x < splat(-87.3f), e * power_of_two(shifted));
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
