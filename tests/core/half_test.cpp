#include "tessera/core/half.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace tessera {
namespace {

struct HalfFormat {
  const char* name;
  int fraction;  // bits of the fraction; the other bits except the sign are the exponent
  float (*widen)(std::uint16_t);
  std::uint16_t (*narrow)(float);

  int bias() const { return (1 << (14 - fraction)) - 1; }
  std::uint16_t infinity() const {
    return static_cast<std::uint16_t>(((1 << (15 - fraction)) - 1) << fraction);
  }
  // Value of finite bits, computed in double from the definition of the format.
  double value(int bits) const {
    const int magnitude = bits & 0x7fff, exponent = magnitude >> fraction;
    const int digits = (magnitude & ((1 << fraction) - 1)) + (exponent > 0 ? 1 << fraction : 0);
    const double size = std::ldexp(digits, std::max(exponent, 1) - bias() - fraction);
    return (bits & 0x8000) != 0 ? -size : size;
  }
};
constexpr HalfFormat half_formats[] = {{"bf16", 7, from_bf16, to_bf16},
                                       {"f16", 10, from_f16, to_f16}};

TEST(Half, WidensEveryValueExactly) {
  for (const HalfFormat& format : half_formats) {
    SCOPED_TRACE(format.name);
    for (int bits = 0; bits < 65536; ++bits) {
      const float wide = format.widen(static_cast<std::uint16_t>(bits));
      const int magnitude = bits & 0x7fff;
      ASSERT_EQ(magnitude > format.infinity(), std::isnan(wide)) << bits;
      ASSERT_EQ((bits & 0x8000) != 0, std::signbit(wide)) << bits;
      if (magnitude == format.infinity()) {
        ASSERT_TRUE(std::isinf(wide)) << bits;
      } else if (magnitude < format.infinity()) {
        ASSERT_EQ(format.value(bits), wide) << bits;
      }
    }
  }
}

TEST(Half, RoundTripsEveryValue) {
  for (const HalfFormat& format : half_formats) {
    const int quiet = 1 << (format.fraction - 1);
    for (int bits = 0; bits < 65536; ++bits) {
      const int wanted = (bits & 0x7fff) > format.infinity() ? bits | quiet : bits;
      ASSERT_EQ(wanted, format.narrow(format.widen(static_cast<std::uint16_t>(bits))))
          << format.name;
    }
  }
}

// The neighbors of a number are the largest value not above its magnitude, and the next value.
// Beyond the largest finite value the next one would be a power of two, which rounds to infinity.
TEST(Half, RoundsToNearestTiesToEven) {
  std::mt19937 random(3);
  for (const HalfFormat& format : half_formats) {
    SCOPED_TRACE(format.name);
    for (int i = 0; i < 300000; ++i) {
      auto bits = static_cast<std::uint32_t>(random());
      if (i % 3 == 0) bits &= 0xfffff000u;                        // ties and representable values
      if (i % 3 == 1) bits = (bits & 0x8fffffffu) | 0x30000000u;  // near the subnormals of f16
      const auto value = std::bit_cast<float>(bits);
      if (std::isnan(value)) {
        const int magnitude = format.narrow(value) & 0x7fff;
        ASSERT_TRUE(magnitude > format.infinity() &&
                    (magnitude & (1 << (format.fraction - 1))) != 0);  // a quiet NaN
        continue;
      }
      const double size = std::fabs(static_cast<double>(value));
      int low = 0, high = format.infinity();  // value(low) <= size < value(high) or infinity
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (format.value(middle) <= size ? low : high) = middle;
      }
      const double step = low == 0 ? format.value(1) : format.value(low) - format.value(low - 1);
      const double next = high == format.infinity()
                              ? format.value(low) + std::ldexp(1.0, std::ilogb(step))
                              : format.value(high);
      const double rest = size - format.value(low), gap = next - format.value(low);
      const bool up = rest > gap / 2 || (rest == gap / 2 && low % 2 == 1);
      const int wanted = (std::signbit(value) ? 0x8000 : 0) | (up ? high : low);
      ASSERT_EQ(wanted, format.narrow(value)) << std::hexfloat << value;
    }
  }
}

}  // namespace
}  // namespace tessera
