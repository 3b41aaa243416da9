// Operations on vectors of accumulators. Internal to reduce_kernels.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "tessera/comm/reduce_formats.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::comm::HWY_NAMESPACE {
namespace {

#if HWY_TARGET == HWY_NEON

// [Note: one NaN] Every NaN result must be the canonical NaN. With FPCR.DN (bit 25) set, the
// processor does this itself, and its minimum and maximum propagate NaN and order the zeros. That
// saves two instructions per vector, where a bf16 sum of two sources takes seven. The memory
// clobber keeps the loads and stores of the loop, and with them its arithmetic, between the two
// writes of the register.
class OneNan {
 public:
  OneNan() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(saved_ | std::uint64_t{1} << 25) : "memory");
  }
  ~OneNan() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }
  OneNan(const OneNan&) = delete;
  OneNan& operator=(const OneNan&) = delete;

  template <class T>
  TESSERA_INLINE V<T> of(V<T> value) {
    return value;
  }

 private:
  std::uint64_t saved_;
};

// Highway's Min and Max drop a NaN.
TESSERA_INLINE V<float> smaller(V<float> a, V<float> b) { return F(vminq_f32(a.raw, b.raw)); }
TESSERA_INLINE V<float> larger(V<float> a, V<float> b) { return F(vmaxq_f32(a.raw, b.raw)); }
TESSERA_INLINE V<double> smaller(V<double> a, V<double> b) {
  return V<double>(vminq_f64(a.raw, b.raw));
}
TESSERA_INLINE V<double> larger(V<double> a, V<double> b) {
  return V<double>(vmaxq_f64(a.raw, b.raw));
}

#else

struct OneNan {
  template <class T>
  TESSERA_INLINE V<T> of(V<T> value) {
    if constexpr (std::is_floating_point_v<T>) {
      return hn::IfThenElse(value == value, value, splat(static_cast<T>(__builtin_nan(""))));
    } else {
      return value;
    }
  }
};

// If neither value is less, they are equal or unordered. Equal values differ at most in the sign of
// zero, and the OR of their bits is the smaller one. If one is a NaN, the OR with its bits is a
// NaN.
template <class X>
TESSERA_INLINE X smaller(X a, X b) {
  return hn::IfThenElse(a < b, a, hn::IfThenElse(b < a, b, hn::Or(a, b)));
}
template <class X>
TESSERA_INLINE X larger(X a, X b) {
  return hn::Neg(smaller(hn::Neg(a), hn::Neg(b)));
}

#endif

// A kernel computes acc = combine(acc, next) for each further source, then
// finish(acc, factor(divisor)). `fused` enables Loop::fused_steps().
struct Sum {
  static constexpr bool fused = true;
  template <class T>
  TESSERA_INLINE V<T> combine(V<T> a, V<T> b) {
    return a + b;
  }
  template <class T>
  TESSERA_INLINE T factor(std::int64_t) {
    return T{1};
  }
  template <class T>
  TESSERA_INLINE V<T> finish(V<T> a, T) {
    return a;
  }
};

struct Average : Sum {
  static constexpr bool fused = false;
  template <class T>
  TESSERA_INLINE T factor(std::int64_t divisor) {
    return static_cast<T>(divisor);
  }
  template <class T>
  TESSERA_INLINE V<T> finish(V<T> a, T divisor) {
    return a / splat(divisor);
  }
};

// Multiplying by 2^-k rounds the same exact value as dividing by 2^k: same bits, but faster.
struct AverageByPowerOfTwo : Sum {
  template <class T>
  TESSERA_INLINE T factor(std::int64_t divisor) {
    return T{1} / static_cast<T>(divisor);
  }
  template <class T>
  TESSERA_INLINE V<T> finish(V<T> a, T reciprocal) {
    return a * splat(reciprocal);
  }
};

struct Min : Sum {
  static constexpr bool fused = false;
  template <class T>
  TESSERA_INLINE V<T> combine(V<T> a, V<T> b) {
    if constexpr (std::is_floating_point_v<T>) {
      return smaller(a, b);
    } else {
      return hn::Min(a, b);
    }
  }
};

struct Max : Sum {
  static constexpr bool fused = false;
  template <class T>
  TESSERA_INLINE V<T> combine(V<T> a, V<T> b) {
    if constexpr (std::is_floating_point_v<T>) {
      return larger(a, b);
    } else {
      return hn::Max(a, b);
    }
  }
};

}  // namespace
}  // namespace tessera::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
