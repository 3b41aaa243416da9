// The oracle for reduce(): each element alone, in scalar arithmetic that can be read beside
// [Note: the same bits everywhere] of reduce.h, with conversions of its own.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/reduce_internal.h"

namespace tessera::comm {
namespace {

template <class T>
T load(const void* from, std::size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(void* to, std::size_t i, T value) {
  std::memcpy(static_cast<char*>(to) + i * sizeof(T), &value, sizeof(T));
}

// A 16-bit format is fixed by the bits of its fraction; the exponent takes the rest but the sign.
template <int Fraction>
struct Half {
  static constexpr int bias = (1 << (14 - Fraction)) - 1;
  static constexpr std::uint16_t infinity = ((1 << (15 - Fraction)) - 1) << Fraction;

  static float widen(std::uint16_t bits) {
    const int magnitude = bits & 0x7fff;
    const int exponent = magnitude >> Fraction;
    const int fraction = magnitude & ((1 << Fraction) - 1);
    float value = 0;
    if (magnitude > infinity) {
      value = std::numeric_limits<float>::quiet_NaN();
    } else if (magnitude == infinity) {
      value = std::numeric_limits<float>::infinity();
    } else if (exponent == 0) {
      value = std::ldexp(static_cast<float>(fraction), 1 - bias - Fraction);
    } else {
      value =
          std::ldexp(static_cast<float>(fraction + (1 << Fraction)), exponent - bias - Fraction);
    }
    return bits & 0x8000 ? -value : value;
  }

  // To nearest, ties to even. Magnitudes are ordered as their bits are, so that rounding up is
  // adding one, from the largest finite number to infinity too.
  static std::uint16_t narrow(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(static_cast<double>(value));
    if (std::isnan(value)) return infinity | 1 << (Fraction - 1);
    if (std::isinf(value)) return sign | infinity;
    if (magnitude == 0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), 1 - bias);
    const double units = std::ldexp(magnitude, Fraction - exponent);  // exact, below 2^(Fraction+1)
    const double whole = std::floor(units);
    const int down = static_cast<int>(whole);
    const double rest = units - whole;
    const bool up = rest > 0.5 || (rest == 0.5 && down % 2 == 1);
    // `down` has the hidden bit of a normal number: it adds one to the exponent field.
    const int bits = ((exponent + bias - 1) << Fraction) + down + (up ? 1 : 0);
    return sign | static_cast<std::uint16_t>(std::min<int>(bits, infinity));
  }
};
using Bfloat16 = Half<7>;
using Float16 = Half<10>;

template <class T>
T read(DType type, const void* from, std::size_t i) {
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::bf16) return Bfloat16::widen(load<std::uint16_t>(from, i));
    if (type == DType::f16) return Float16::widen(load<std::uint16_t>(from, i));
  }
  return load<T>(from, i);
}

template <class T>
void write(DType type, void* to, std::size_t i, T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  }
  if constexpr (std::is_same_v<T, float>) {
    if (type == DType::bf16) return store(to, i, Bfloat16::narrow(value));
    if (type == DType::f16) return store(to, i, Float16::narrow(value));
  }
  store(to, i, value);
}

template <class T>
bool less(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) return std::signbit(a) && !std::signbit(b);
  }
  return a < b;
}

template <class T>
T combine(ReduceOp op, T a, T b) {
  if (op == ReduceOp::min || op == ReduceOp::max) {
    if constexpr (std::is_floating_point_v<T>) {
      if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<T>::quiet_NaN();
    }
    return less(a, b) == (op == ReduceOp::min) ? a : b;
  }
  if constexpr (std::is_floating_point_v<T>) {
    return a + b;
  } else {  // in unsigned arithmetic, which wraps; 64 bits, or u8 and i32 would be promoted to int
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
}

// Wide is T, or what integers are averaged in.
template <class T, class Wide>
T reduce_element(const Reduction& what, std::span<const void* const> sources, std::size_t i) {
  Wide total = read<T>(what.in, sources[0], i);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    total = combine<Wide>(what.op, total, read<T>(what.in, sources[s], i));
  }
  if (what.op == ReduceOp::avg) total = total / static_cast<Wide>(what.divisor);
  return static_cast<T>(total);
}

template <class T, class Average = T>
void reduce_all(const Reduction& what, std::span<const void* const> sources,
                std::span<void* const> destinations, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const T result = what.op == ReduceOp::avg ? reduce_element<T, Average>(what, sources, i)
                                              : reduce_element<T, T>(what, sources, i);
    for (void* to : destinations) write(what.out, to, i, result);
  }
}

}  // namespace

void reduce_reference(const Reduction& what, std::span<const void* const> sources,
                      std::span<void* const> destinations, std::size_t count) {
  check_reduction(what, sources.size());
  if (is_copy(what, sources.size())) {
    for (void* to : destinations) copy_bytes(to, sources[0], count * size_of(what.in));
    return;
  }
  switch (accumulator(what.in)) {
    case DType::f64: return reduce_all<double>(what, sources, destinations, count);
    case DType::i32:
      return reduce_all<std::int32_t, std::int64_t>(what, sources, destinations, count);
    case DType::i64: return reduce_all<std::int64_t>(what, sources, destinations, count);
    case DType::u8:
      return reduce_all<std::uint8_t, std::uint64_t>(what, sources, destinations, count);
    default: return reduce_all<float>(what, sources, destinations, count);
  }
}

}  // namespace tessera::comm
