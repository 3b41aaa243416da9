// Vectors, and the formats of numbers in memory: the lower half of reduce_kernels.h, which says how
// the two are compiled. Internal to the reduction kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::comm::TESSERA_REDUCE_SET {
namespace {

constexpr std::size_t vector_bytes = TESSERA_REDUCE_BYTES;
constexpr std::size_t step_vectors = 128 / vector_bytes;

// V<float>: a vector of vector_bytes. W<uint16_t, float>: as many uint16_t as V<float> has floats.
template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(TESSERA_REDUCE_BYTES)));
};
template <class T>
using V = typename VectorOf<T>::type;
template <class T, class A>
struct NarrowOf {
  typedef T type __attribute__((vector_size(TESSERA_REDUCE_BYTES * sizeof(T) / sizeof(A))));
};
template <class T, class A>
using W = typename NarrowOf<T, A>::type;

#define TESSERA_INLINE static inline __attribute__((always_inline))
#define TESSERA_UNROLL _Pragma("GCC unroll 8")  // keeps arrays of vectors in registers

// Through a type that may lie anywhere and alias anything: GCC 12 moves a memcpy of a vector
// through the integer registers.
template <class T>
struct Anywhere {
  typedef T type __attribute__((aligned(1), may_alias));
};
template <class T>
TESSERA_INLINE T read(const char* from) {
  return *reinterpret_cast<const typename Anywhere<T>::type*>(from);
}
template <class T>
TESSERA_INLINE void write(char* to, T value) {
  *reinterpret_cast<typename Anywhere<T>::type*>(to) = value;
}

// ---- element types: how the accumulators of one step are read from and written to memory ----
// load and store move step_vectors vectors; `elements` of them, in this order unless said.

template <class A>
constexpr std::size_t lanes = vector_bytes / sizeof(A);
template <class A>
constexpr std::size_t elements = step_vectors* lanes<A>;

// T in memory, A in the accumulator: the same type, or (integer averages) a wider one.
template <class T, class A = T>
struct Plain {
  using Lane = A;
  static constexpr std::size_t bytes = sizeof(T);
  TESSERA_INLINE void load(V<A>* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      const auto raw = read<W<T, A>>(from + k * lanes<A> * bytes);
      acc[k] = __builtin_convertvector(raw, V<A>);
    }
  }
  TESSERA_INLINE void store(char* to, const V<A>* acc) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      const auto raw = __builtin_convertvector(acc[k], W<T, A>);
      write(to + k * lanes<A> * bytes, raw);
    }
  }
};

using Bits = V<std::uint32_t>;
using Floats = V<float>;
using Halves = W<std::uint16_t, float>;

// The 16 bits of the rounded bf16 are the upper half of the result. A NaN must be the one NaN
// already (see [Note: one NaN]), which rounds to itself; another could carry into an infinity.
TESSERA_INLINE Bits round_to_bf16(Floats value) {
  const Bits bits = (Bits)value;
  return bits + ((bits >> 16) & 1) + 0x7fff;
}

// bf16 on one side, f32 on the other.
struct Bf16 {
  using Lane = float;
  static constexpr std::size_t bytes = 2;
  TESSERA_INLINE void load(Floats* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      const auto raw = read<Halves>(from + k * sizeof(Halves));
      acc[k] = (Floats)(__builtin_convertvector(raw, Bits) << 16);
    }
  }
  TESSERA_INLINE void store(char* to, const Floats* acc) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      const Halves raw = __builtin_convertvector(round_to_bf16(acc[k]) >> 16, Halves);
      write(to + k * sizeof raw, raw);
    }
  }
};

// bf16 on both sides, twice as many elements at once: the even ones and the odd ones of a vector
// are widened into two, and put together again the same way. What is done to an element does not
// depend on its place, and keeping the order would cost more.
struct Bf16Pairs {
  using Lane = float;
  using Pairs = V<std::uint16_t>;
  static constexpr std::size_t bytes = 2;
  TESSERA_INLINE void load(Floats* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; k += 2) {
      const auto raw = read<Bits>(from + k / 2 * vector_bytes);
      acc[k] = (Floats)(raw << 16);
      acc[k + 1] = (Floats)(raw & 0xffff0000u);
    }
  }
  TESSERA_INLINE void store(char* to, const Floats* acc) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; k += 2) {
      const Bits even = (Bits)acc[k], odd = (Bits)acc[k + 1];
      // Round up if lower > 0x8000, or lower == 0x8000 and upper is odd. As signed numbers less
      // 0x8000, that is lower > 0 or lower > -1; a comparison that holds is -1.
#if defined(__aarch64__)  // one instruction each; shifts have only one of the two pipes
      const Pairs upper = vtrn2q_u16((Pairs)even, (Pairs)odd);
      const Pairs lower = vtrn1q_u16((Pairs)even, (Pairs)odd);
      const auto is_odd = (V<std::int16_t>)vtstq_u16(upper, Pairs{} + 1);
#else
      const Pairs upper = (Pairs)((even >> 16) | (odd & 0xffff0000u));
      const Pairs lower = (Pairs)((even & 0xffffu) | (odd << 16));
      const auto is_odd = (V<std::int16_t>)(Pairs{} - (upper & 1));
#endif
      const auto round_up = (V<std::int16_t>)(lower ^ 0x8000) > is_odd;
      write(to + k / 2 * vector_bytes, upper - (Pairs)round_up);
    }
  }
};

#if defined(__aarch64__)
TESSERA_INLINE Floats widen_f16(Halves half) { return vcvt_f32_f16((float16x4_t)half); }
TESSERA_INLINE Halves narrow_f16(Floats value) { return (Halves)vcvt_f16_f32(value); }
#elif defined(TESSERA_REDUCE_F16C)
TESSERA_INLINE Floats widen_f16(Halves half) { return (Floats)_mm256_cvtph_ps((__m128i)half); }
TESSERA_INLINE Halves narrow_f16(Floats value) {
  return (Halves)_mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT);
}
#else
TESSERA_INLINE Floats widen_f16(Halves raw) {
  const Bits half = __builtin_convertvector(raw, Bits);
  const Bits magnitude = half & 0x7fff;
  const V<std::int32_t> order = (V<std::int32_t>)magnitude;
  // Below 2^-14 (0x0400) the value is magnitude * 2^-24; infinity and NaN start at 0x7c00.
  const Floats tiny = __builtin_convertvector(order, Floats) * 0x1p-24f;
  const Bits normal = (magnitude << 13) + (112u << 23);
  const Bits special = (magnitude << 13) | 0x7f800000u;
  const Bits bits = order < 0x0400 ? (Bits)tiny : order < 0x7c00 ? normal : special;
  return (Floats)(bits | (half & 0x8000) << 16);
}
TESSERA_INLINE Halves narrow_f16(Floats value) {
  const Bits bits = (Bits)value;
  const Bits magnitude = bits & 0x7fffffffu;
  const V<std::int32_t> order = (V<std::int32_t>)magnitude;  // compares as the float does
  // Below 2^-14: adding 0.5, whose last bit is worth 2^-24, rounds to a multiple of that.
  const Bits tiny = (Bits)((Floats)magnitude + 0.5f) - 0x3f000000u;
  const Bits normal = (magnitude - (112u << 23) + ((magnitude >> 13) & 1) + 0xfff) >> 13;
  const Bits infinity = Bits{} + 0x7c00, nan = Bits{} + 0x7e00;
  const Bits special = order > 0x7f800000 ? nan : infinity;
  const Bits half = order < 0x38800000 ? tiny : order < 0x47800000 ? normal : special;
  return __builtin_convertvector(half | ((bits >> 16) & 0x8000), Halves);
}
#endif

struct F16 {
  using Lane = float;
  static constexpr std::size_t bytes = 2;
  TESSERA_INLINE void load(Floats* acc, const char* from) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      acc[k] = widen_f16(read<Halves>(from + k * sizeof(Halves)));
    }
  }
  TESSERA_INLINE void store(char* to, const Floats* acc) {
    TESSERA_UNROLL
    for (std::size_t k = 0; k < step_vectors; ++k) {
      const Halves raw = narrow_f16(acc[k]);
      write(to + k * sizeof raw, raw);
    }
  }
};

}  // namespace
}  // namespace tessera::comm::TESSERA_REDUCE_SET
