#include <cmath>
#include <cstddef>
#include <iterator>

#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera {
namespace {

// Larger values are written with an exponent.
constexpr double kLong = 1e15;

// Formats three significant digits without trailing zeros, and always the whole integer part.
std::string three_digits(double value) {
  if (value >= kLong) return str(value);
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::string text = fixed(value, decimals);
  if (decimals > 0) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text;
}

std::string scaled(double value, double base, const char* const* units, std::size_t count,
                   const char* space) {
  std::size_t unit = 0;
  // Values that round up to the base use the next unit: 999.7 MB would be written as 1000 MB.
  while (unit + 1 < count && std::round(value) >= base) {
    value /= base;
    ++unit;
  }
  return three_digits(value) + (*units[unit] != '\0' ? space : "") + units[unit];
}

constexpr const char* kDecimalBytes[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
constexpr const char* kBinaryBytes[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
constexpr const char* kRates[] = {"B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s", "EB/s"};
constexpr const char* kCounts[] = {"", "k", "M", "B", "T"};

// Unsigned because the magnitude of the most negative integer does not fit into int64.
std::uint64_t magnitude(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  return value < 0 ? ~bits + 1 : bits;
}

std::string sign(std::int64_t value) { return value < 0 ? "-" : ""; }

// Formats a whole number of the smaller unit as "1 h 30 min".
std::string two_parts(double smaller, double ratio, const char* large, const char* small) {
  const double whole = std::floor(smaller / ratio);
  const double rest = smaller - whole * ratio;
  std::string text = three_digits(whole) + " " + large;
  if (rest > 0) text += " " + three_digits(rest) + " " + small;
  return text;
}

}  // namespace

std::string format_bytes(std::int64_t bytes, ByteUnits units) {
  const auto value = static_cast<double>(magnitude(bytes));
  return sign(bytes) + (units == ByteUnits::kDecimal
                            ? scaled(value, 1000, kDecimalBytes, std::size(kDecimalBytes), " ")
                            : scaled(value, 1024, kBinaryBytes, std::size(kBinaryBytes), " "));
}

std::string format_rate(double bytes_per_second) {
  if (std::isnan(bytes_per_second)) return "nan";
  if (std::isinf(bytes_per_second)) return bytes_per_second > 0 ? "inf" : "-inf";
  return (bytes_per_second < 0 ? "-" : "") +
         scaled(std::abs(bytes_per_second), 1000, kRates, std::size(kRates), " ");
}

std::string format_time(double seconds) {
  if (std::isnan(seconds)) return "nan";
  if (std::isinf(seconds)) return seconds > 0 ? "inf" : "-inf";
  constexpr double kLeast = 0.005e-9;  // smaller values would be printed as 0 ns
  if (std::abs(seconds) < kLeast) return "0 s";
  if (seconds < 0) return "-" + format_time(-seconds);
  // At each limit the value, rounded to three digits, would reach the next unit.
  if (seconds < 999.5e-9) return three_digits(seconds * 1e9) + " ns";
  if (seconds < 999.5e-6) return three_digits(seconds * 1e6) + " us";
  if (seconds < 999.5e-3) return three_digits(seconds * 1e3) + " ms";
  if (seconds < 59.95) return three_digits(seconds) + " s";
  if (seconds < 3599.5) return two_parts(std::round(seconds), 60, "min", "s");
  if (seconds < 86370) return two_parts(std::round(seconds / 60), 60, "h", "min");
  if (seconds >= kLong) return three_digits(seconds) + " s";
  return two_parts(std::round(seconds / 3600), 24, "d", "h");
}

std::string format_count(std::int64_t count) {
  return sign(count) +
         scaled(static_cast<double>(magnitude(count)), 1000, kCounts, std::size(kCounts), "");
}

std::string format_grouped(std::int64_t count) {
  std::string digits = std::to_string(magnitude(count));
  for (std::size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return sign(count) + digits;
}

}  // namespace tessera
