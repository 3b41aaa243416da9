#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

// [Note: portable math] Elementary functions that return the same bits on every platform, so that
// predictions do not depend on the machine. The functions of libm differ in the last bit between C
// libraries, and between processors with and without fused multiply-add. These use only operations
// that IEEE 754 defines exactly, in a fixed order (libraries that call them are compiled with
// -ffp-contract=off). Errors are a few units in the last place.
namespace tessera::portable {
namespace detail {
// ln 2 in two parts. The product of the first and an exponent is exact.
constexpr double kLn2High = 0x1.62e42fefa3800p-1, kLn2Low = 0x1.ef35793c76730p-45;

// x = 2^exponent · m with m in [√½, √2).
struct Logarithm {
  int exponent = 0;
  double rest = 0;  // ln m
};
inline Logarithm logarithm(double x) {
  Logarithm result;
  double m = std::frexp(x, &result.exponent);
  if (m < 0.70710678118654752) {
    m *= 2;
    --result.exponent;
  }
  // ln m = 2 artanh(s) = 2 (s + s³/3 + s⁵/5 + …), |s| < 0.172.
  const double s = (m - 1) / (m + 1), square = s * s;
  double sum = 0;
  for (int odd = 23; odd > 1; odd -= 2) sum = (sum + 1.0 / odd) * square;
  result.rest = 2 * s + 2 * s * sum;
  return result;
}
}  // namespace detail

// Natural logarithm of a finite x > 0.
inline double log(double x) {
  const detail::Logarithm l = detail::logarithm(x);
  return l.exponent * detail::kLn2High + (l.exponent * detail::kLn2Low + l.rest);
}

// Logarithm to base 2 of a finite x > 0. Exact for powers of two.
inline double log2(double x) {
  const detail::Logarithm l = detail::logarithm(x);
  return l.exponent + l.rest * 0x1.71547652b82fep0;
}

inline double exp(double x) {
  if (!(x < 709.7)) return x == x ? std::numeric_limits<double>::infinity() : x;
  if (x < -745) return 0;
  // e^x = 2^k · e^r with |r| <= ln 2 / 2.
  const double k = std::floor(x * 0x1.71547652b82fep0 + 0.5);
  const double r = (x - k * detail::kLn2High) - k * detail::kLn2Low;
  double sum = 1;
  for (int n = 14; n > 0; --n) sum = 1 + sum * r / n;
  return std::ldexp(sum, static_cast<int>(k));
}

// x^y for a finite x >= 0 and y > 0.
inline double pow(double x, double y) { return x > 0 ? exp(y * log(x)) : 0; }

// Cube root of a finite x >= 0.
inline double cbrt(double x) { return pow(x, 1.0 / 3); }

}  // namespace tessera::portable

namespace tessera {

// Formats with as few digits as give the same double again: 0.25, 6e-04. The same text as
// std::to_chars, which not all standard libraries have for doubles.
std::string shortest(double value);
// Reads a finite decimal number that is the whole text, as std::from_chars does. Returns
// std::errc::invalid_argument or std::errc::result_out_of_range if that fails.
std::errc read_double(std::string_view text, double& value);

}  // namespace tessera
