// SIMD vectors for the kernels and the reductions, based on Google Highway. Internal.
//
// [Note: sets] Code that includes this header is compiled once for each instruction set. Each set
// has its own source file, which defines HWY_BASELINE_TARGETS before it includes the code. All of
// the code must be between HWY_BEFORE_NAMESPACE() and HWY_AFTER_NAMESPACE(), which enable the
// instructions, and inside HWY_NAMESPACE; otherwise the linker would merge functions of two sets.
// For the same reason no template of the standard library may be instantiated there. The set is
// chosen at run time (cpu.h). Only the headers of Highway are used; no library is linked.
//
// Vectors have a compile-time size in all sets, so arrays of vectors work. A struct of vectors
// needs user-defined constructors: implicit ones are compiled without the instructions of the set.
#pragma once

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#define TESSERA_INLINE static inline __attribute__((always_inline))
#define TESSERA_HERE __attribute__((always_inline))  // for lambdas
#define TESSERA_UNROLL _Pragma("GCC unroll 8")       // keeps arrays of vectors in registers

HWY_BEFORE_NAMESPACE();
namespace tessera::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A full vector of T, and a vector of T with as many elements as a full vector of A.
template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using V = hn::Vec<Tag<T>>;
template <class T, class A>
using NarrowTag = hn::Rebind<T, Tag<A>>;
template <class T, class A>
using Narrow = hn::Vec<NarrowTag<T, A>>;

template <class T>
inline constexpr std::size_t lanes_of = HWY_LANES(T);

using F = V<float>;
using U = V<std::uint32_t>;
using Halves = Narrow<std::uint16_t, float>;

template <class T>
TESSERA_INLINE V<T> splat(T x) {
  return hn::Set(Tag<T>(), x);
}
TESSERA_INLINE F as_floats(U x) { return hn::BitCast(Tag<float>(), x); }
TESSERA_INLINE U as_bits(F x) { return hn::BitCast(Tag<std::uint32_t>(), x); }

// ---- bf16: the upper half of an fp32 ----

TESSERA_INLINE F widen_bf16(Halves half) {
#if HWY_TARGET == HWY_NEON
  return as_floats(U(vshll_n_u16(half.raw, 16)));  // Highway uses two instructions
#else
  return as_floats(hn::ShiftLeft<16>(hn::PromoteTo(Tag<std::uint32_t>(), half)));
#endif
}
TESSERA_INLINE Halves upper_half(U bits) {
#if HWY_TARGET == HWY_NEON
  return Halves(vshrn_n_u32(bits.raw, 16));
#elif HWY_TARGET == HWY_AVX3
  return hn::TruncateTo(NarrowTag<std::uint16_t, float>(), hn::ShiftRight<16>(bits));
#else
  return hn::DemoteTo(NarrowTag<std::uint16_t, float>(),
                      hn::BitCast(Tag<std::int32_t>(), hn::ShiftRight<16>(bits)));
#endif
}
// Rounds to nearest, ties to even. The result is the upper half. A NaN becomes an arbitrary value.
TESSERA_INLINE U round_to_bf16(U bits) {
  const U odd = hn::And(hn::ShiftRight<16>(bits), splat<std::uint32_t>(1));
  return bits + odd + splat<std::uint32_t>(0x7fff);
}

// ---- f16 ----

TESSERA_INLINE F widen_f16(Halves half) {
#if HWY_TARGET == HWY_SSSE3  // Highway converts NaN and infinity to finite numbers
  const U bits = hn::PromoteTo(Tag<std::uint32_t>(), half);
  const U magnitude = hn::And(bits, splat<std::uint32_t>(0x7fff));
  const auto order = hn::BitCast(Tag<std::int32_t>(), magnitude);
  // Below 2^-14 (0x0400) the value is magnitude * 2^-24; infinity and NaN start at 0x7c00.
  const U tiny = as_bits(hn::ConvertTo(Tag<float>(), order) * splat(0x1p-24f));
  const U shifted = hn::ShiftLeft<13>(magnitude);
  const U normal = shifted + splat<std::uint32_t>(112u << 23);
  const U special = hn::Or(shifted, splat<std::uint32_t>(0x7f800000u));
  const auto below = [&](std::int32_t limit, U yes, U no) TESSERA_HERE {
    return hn::IfThenElse(hn::RebindMask(Tag<std::uint32_t>(), order < splat(limit)), yes, no);
  };
  const U value = below(0x0400, tiny, below(0x7c00, normal, special));
  const U sign = hn::And(bits, splat<std::uint32_t>(0x8000));
  return as_floats(hn::Or(value, hn::ShiftLeft<16>(sign)));
#else
  return hn::PromoteTo(Tag<float>(), hn::BitCast(NarrowTag<hwy::float16_t, float>(), half));
#endif
}
TESSERA_INLINE Halves narrow_f16(F value) {
#if HWY_TARGET == HWY_SSSE3  // Highway truncates
  const U bits = as_bits(value);
  const U magnitude = hn::And(bits, splat<std::uint32_t>(0x7fffffffu));
  const auto order = hn::BitCast(Tag<std::int32_t>(), magnitude);  // compares as the float does
  // Below 2^-14: adding 0.5, whose last bit is worth 2^-24, rounds to a multiple of that.
  const U tiny = as_bits(as_floats(magnitude) + splat(0.5f)) - splat<std::uint32_t>(0x3f000000u);
  const U odd = hn::And(hn::ShiftRight<13>(magnitude), splat<std::uint32_t>(1));
  const U normal = hn::ShiftRight<13>(magnitude + odd + splat<std::uint32_t>(0xfff - (112u << 23)));
  const auto below = [&](std::int32_t limit, U yes, U no) TESSERA_HERE {
    return hn::IfThenElse(hn::RebindMask(Tag<std::uint32_t>(), order < splat(limit)), yes, no);
  };
  const U special = below(0x7f800001, splat<std::uint32_t>(0x7c00), splat<std::uint32_t>(0x7e00));
  const U half = below(0x38800000, tiny, below(0x47800000, normal, special));
  const U sign = hn::And(hn::ShiftRight<16>(bits), splat<std::uint32_t>(0x8000));
  return hn::DemoteTo(NarrowTag<std::uint16_t, float>(),
                      hn::BitCast(Tag<std::int32_t>(), hn::Or(half, sign)));
#else
  return hn::BitCast(NarrowTag<std::uint16_t, float>(),
                     hn::DemoteTo(NarrowTag<hwy::float16_t, float>(), value));
#endif
}

}  // namespace
}  // namespace tessera::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
