#include "tessera/core/portable_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tessera {
namespace {

double relative_error(double value, double reference) {
  return reference == 0 ? std::abs(value) : std::abs(value / reference - 1);
}

TEST(PortableMath, IsCloseToLibm) {
  constexpr double kFew = 4 * std::numeric_limits<double>::epsilon();
  std::mt19937_64 random(1);
  const auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  for (int i = 0; i < 100000; ++i) {
    const double x = std::exp(uniform(-700, 700)), small = uniform(-3, 3), y = uniform(0.1, 4);
    EXPECT_LT(relative_error(portable::log(x), std::log(x)), kFew) << x;
    EXPECT_LT(relative_error(portable::log2(x), std::log2(x)), kFew) << x;
    EXPECT_LT(relative_error(portable::exp(small), std::exp(small)), kFew) << small;
    const double base = uniform(0.01, 2);
    EXPECT_LT(relative_error(portable::pow(base, y), std::pow(base, y)), 5 * kFew)
        << base << " " << y;
    EXPECT_LT(relative_error(portable::cbrt(x), std::cbrt(x)), 300 * kFew) << x;
  }
}

TEST(PortableMath, IsExactAtPowersOfTwoAndAtTheEnds) {
  for (int e = -1000; e <= 1000; ++e) EXPECT_EQ(portable::log2(std::ldexp(1.0, e)), e);
  EXPECT_EQ(portable::log(1), 0);
  EXPECT_EQ(portable::exp(0), 1);
  EXPECT_EQ(portable::pow(0, 3.8), 0);
  EXPECT_EQ(portable::pow(1, 3.8), 1);
  EXPECT_EQ(portable::exp(-1000), 0);
  EXPECT_TRUE(std::isinf(portable::exp(1000)));
  EXPECT_TRUE(std::isnan(portable::exp(std::nan(""))));
}

// The same bits on every platform. The static site's tests compare them with WebAssembly.
TEST(PortableMath, ReturnsTheseBits) {
  EXPECT_EQ(portable::pow(1 + portable::pow(0.3, 3.8), 1 / 3.8), 0x1.00b10ec749439p+0);
  EXPECT_EQ(portable::log2(3), 0x1.95c01a39fbd69p+0);
  EXPECT_EQ(portable::exp(0.7), 0x1.01c2a61268987p+1);
  EXPECT_EQ(portable::cbrt(7e9), 0x1.de3b987fa080bp+10);
}

}  // namespace
}  // namespace tessera
