#include "tessera/checkpoint/convert_dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"

namespace tessera::checkpoint {
namespace {

// Value of a 16-bit float, from the definition of the format.
double slow_value(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <typename To, typename From>
To one(DType from, From value, DType to, Rounding rounding, std::int64_t& done) {
  To out{};
  done = convert(from, reinterpret_cast<const std::byte*>(&value), to,
                 reinterpret_cast<std::byte*>(&out), 1, rounding);
  return out;
}

TEST(DTypes, HaveStoredNamesAndSizes) {
  EXPECT_EQ(bytes_of(DType::bf16), 2);
  EXPECT_EQ(stored_name(DType::f8_e4m3), "F8_E4M3");
  EXPECT_FALSE(convertible(DType::f32, DType::i32));
  EXPECT_FALSE(convertible(DType::f64, DType::f32));
  EXPECT_TRUE(convertible(DType::i64, DType::i64));
}

TEST(DTypes, RoundTripsEveryNarrowValue) {
  for (const DType narrow : {DType::f16, DType::bf16}) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto value = static_cast<std::uint16_t>(bits);
      std::int64_t done = 0;
      const float wide = one<float>(narrow, value, DType::f32, Rounding::exact, done);
      ASSERT_EQ(done, 1);
      const double wanted =
          narrow == DType::f16 ? slow_value(value, 5, 10) : slow_value(value, 8, 7);
      if (std::isnan(wanted)) {
        ASSERT_TRUE(std::isnan(wide));
      } else {
        ASSERT_EQ(static_cast<double>(wide), wanted);
        ASSERT_EQ(std::signbit(wide), std::signbit(wanted));
      }
      ASSERT_EQ(one<std::uint16_t>(DType::f32, wide, narrow, Rounding::exact, done), value);
      ASSERT_EQ(done, 1);
      const double shown = value_at(narrow, reinterpret_cast<const std::byte*>(&value), 0);
      ASSERT_TRUE(shown == wanted || (std::isnan(shown) && std::isnan(wanted)));
    }
  }
}

// Reference by search: the closest of all values of the type, the even one in a tie.
std::uint16_t slow_nearest(double value, int exponent_bits, int fraction_bits) {
  const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  value = std::fabs(value);
  std::uint16_t low = 0, high = infinity;  // values grow with their bits
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (slow_value(middle, exponent_bits, fraction_bits) <= value ? low : high) = middle;
  }
  if (slow_value(low, exponent_bits, fraction_bits) == value) return sign | low;
  if (std::isinf(value)) return sign | infinity;
  // Infinity takes the position of the next value.
  const double below = slow_value(low, exponent_bits, fraction_bits);
  const double above = high == infinity ? std::ldexp(1.0, (1 << (exponent_bits - 1)))
                                        : slow_value(high, exponent_bits, fraction_bits);
  const double down = value - below, up = above - value;
  const bool take_low = down < up || (down == up && low % 2 == 0);
  return static_cast<std::uint16_t>(sign | (take_low ? low : high));
}

TEST(DTypes, NarrowingRoundsToNearestAndReportsInexactValues) {
  const Philox random(3, 4);
  std::vector<std::uint32_t> samples = {0x00000001u, 0x33000000u, 0x33000001u, 0x387fc000u,
                                        0x387fffffu, 0x477fefffu, 0x477ff000u, 0x477fe000u,
                                        0x7f7fffffu, 0x7f800000u, 0xff800000u, 0x80000000u,
                                        0x3f808000u, 0x3f818000u, 0x3f801000u, 0x3f803000u};
  for (std::uint64_t i = 0; i < 20000; ++i) {
    std::uint32_t bits = random.bits(i);
    if (i % 2 == 0) bits = (bits & 0x8fffffffu) | 0x30000000u;  // in the range of f16
    if (i % 3 == 0) bits &= 0xffffe000u;                        // many exact values
    samples.push_back(bits);
  }
  for (const std::uint32_t bits : samples) {
    const float value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    for (const bool half : {false, true}) {
      const DType to = half ? DType::f16 : DType::bf16;
      const std::uint16_t wanted = slow_nearest(value, half ? 5 : 8, half ? 10 : 7);
      std::int64_t done = 0;
      ASSERT_EQ(one<std::uint16_t>(DType::f32, value, to, Rounding::nearest, done), wanted)
          << std::hex << bits << " half " << half;
      ASSERT_EQ(done, 1);
      one<std::uint16_t>(DType::f32, value, to, Rounding::exact, done);
      const double back = slow_value(wanted, half ? 5 : 8, half ? 10 : 7);
      ASSERT_EQ(done, back == static_cast<double>(value) ? 1 : 0);
    }
  }
  const float nan = std::bit_cast<float>(0x7f800001u);
  std::int64_t done = 0;
  EXPECT_TRUE(std::isnan(
      slow_value(one<std::uint16_t>(DType::f32, nan, DType::bf16, Rounding::nearest, done), 8, 7)));
  EXPECT_TRUE(std::isnan(
      slow_value(one<std::uint16_t>(DType::f32, nan, DType::f16, Rounding::nearest, done), 5, 10)));
}

TEST(DTypes, StopsAtTheFirstInexactValue) {
  const std::vector<float> values = {1, 2, 0.1f, 4};
  std::vector<std::uint16_t> out(4, 0);
  const auto run = [&](Rounding rounding) {
    return convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()), DType::bf16,
                   reinterpret_cast<std::byte*>(out.data()), 4, rounding);
  };
  EXPECT_EQ(run(Rounding::exact), 2);
  EXPECT_EQ(run(Rounding::nearest), 4);
  EXPECT_THROW(convert(DType::f32, nullptr, DType::i32, nullptr, 0, Rounding::exact), UsageError);
}

}  // namespace
}  // namespace tessera::checkpoint
