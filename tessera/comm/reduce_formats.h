// Loads and stores of the number formats for reduce_kernels.h. Internal; [Note: sets] in
// core/simd.h explains its compilation.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/core/simd.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::comm::HWY_NAMESPACE {
namespace {

using namespace tessera::HWY_NAMESPACE;

// load() and store() transfer the accumulators of one step: step_vectors vectors with `elements`
// elements, in memory order unless stated otherwise.
constexpr std::size_t vector_bytes = HWY_LANES(std::uint8_t);
constexpr std::size_t step_vectors = 128 / vector_bytes;
template <class T>
constexpr std::size_t elements = step_vectors* lanes_of<T>;

// Accesses memory as bytes, which need no alignment and may alias any type.
template <class D>
TESSERA_INLINE hn::Vec<D> read(D numbers, const char* from) {
  const hn::Repartition<std::uint8_t, D> bytes;
  return hn::BitCast(numbers, hn::LoadU(bytes, reinterpret_cast<const std::uint8_t*>(from)));
}
template <class X>
TESSERA_INLINE void write(char* to, X value) {
  const hn::Repartition<std::uint8_t, hn::DFromV<X>> bytes;
  hn::StoreU(hn::BitCast(bytes, value), bytes, reinterpret_cast<std::uint8_t*>(to));
}

// Format with the same type in memory and in the accumulator.
template <class T>
struct Plain {
  using Lane = T;
  static constexpr std::size_t bytes = sizeof(T);
  TESSERA_INLINE void load(V<T>* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) acc[k] = read(Tag<T>(), from + k * vector_bytes);
  }
  TESSERA_INLINE void store(char* to, const V<T>* acc) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) write(to + k * vector_bytes, acc[k]);
  }
};

// Format with 16 bits in memory and f32 in the accumulator.
template <F (*widen)(Halves), Halves (*narrow)(F)>
struct Half {
  using Lane = float;
  static constexpr std::size_t bytes = 2;
  TESSERA_INLINE void load(F* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      acc[k] = widen(read(NarrowTag<std::uint16_t, float>(), from + k * vector_bytes / 2));
    }
  }
  TESSERA_INLINE void store(char* to, const F* acc) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      write(to + k * vector_bytes / 2, narrow(acc[k]));
    }
  }
};
// A NaN must already be canonical (see [Note: one NaN]), which rounds to itself. With another NaN
// the carry of the rounding could produce an infinity.
TESSERA_INLINE Halves narrow_bf16(F value) { return upper_half(round_to_bf16(as_bits(value))); }
using Bf16 = Half<widen_bf16, narrow_bf16>;
using F16 = Half<widen_f16, narrow_f16>;

// bf16 in and out, with twice as many elements at once: the even and the odd elements of a vector
// are widened into two vectors and later interleaved again. The arithmetic does not depend on the
// position of an element, and keeping the order would be slower.
struct Bf16Pairs {
  using Lane = float;
  using Pairs = V<std::uint16_t>;
  static constexpr std::size_t bytes = 2;
  TESSERA_INLINE void load(F* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; k += 2) {
      const U raw = read(Tag<std::uint32_t>(), from + k / 2 * vector_bytes);
      acc[k] = as_floats(hn::ShiftLeft<16>(raw));
      acc[k + 1] = as_floats(hn::And(raw, splat<std::uint32_t>(0xffff0000u)));
    }
  }
  TESSERA_INLINE void store(char* to, const F* acc) {
    constexpr Tag<std::uint16_t> pairs;
    constexpr Tag<std::int16_t> order;
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; k += 2) {
      const U even = as_bits(acc[k]), odd = as_bits(acc[k + 1]);
      // Round up if lower > 0x8000, or lower == 0x8000 and upper is odd. After subtracting 0x8000,
      // as signed numbers, that is lower > 0 or lower > -1; a true comparison is -1.
#if HWY_TARGET == HWY_NEON  // one instruction each; shifts run on only one of the two pipes
      const auto first = vreinterpretq_u16_u32(even.raw), second = vreinterpretq_u16_u32(odd.raw);
      const Pairs upper(vtrn2q_u16(first, second)), lower(vtrn1q_u16(first, second));
      const Pairs is_odd(vtstq_u16(upper.raw, splat<std::uint16_t>(1).raw));
#else
      const U high = splat<std::uint32_t>(0xffff0000u);
      const Pairs upper = hn::BitCast(pairs, hn::Or(hn::ShiftRight<16>(even), hn::And(odd, high)));
      const Pairs lower =
          hn::BitCast(pairs, hn::Or(hn::AndNot(high, even), hn::ShiftLeft<16>(odd)));
      const Pairs is_odd = hn::Zero(pairs) - hn::And(upper, splat<std::uint16_t>(1));
#endif
      const auto over = hn::BitCast(order, hn::Xor(lower, splat<std::uint16_t>(0x8000)));
      const auto up = hn::VecFromMask(order, over > hn::BitCast(order, is_odd));
      write(to + k / 2 * vector_bytes, upper - hn::BitCast(pairs, up));
    }
  }
};

}  // namespace
}  // namespace tessera::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
