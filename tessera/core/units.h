#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// [Note: units]
// What people write for sizes, rates, times and counts, and how we write them back.
// - MB is 10^6 bytes and MiB is 2^20 bytes, always; "25M" is refused as a size, since it is read in
//   both ways. A small b is a bit: "100Gb/s" is 12.5e9 bytes per second.
// - A number may have a fraction, an exponent and commas between groups of three digits; one space
//   may stand before the unit.
// - Parsing fails with a UsageError that shows the text, the place and the accepted forms. Negative
//   values, NaN, infinities and what does not fit the result are refused.
// - Formatting keeps three significant digits (and never cuts the integer part), so parsing a
//   formatted value gives it back within 0.5%.

// MB or MiB.
enum class ByteUnits { kDecimal, kBinary };

// Bytes: "200MB" is 200'000'000, "25MiB" is 25 * 2^20, "4096", "4 KiB", "1.5GB". Fractions of a
// byte are rounded where there is a prefix and refused where there is none.
std::int64_t parse_bytes(std::string_view text);
// 25 * 2^20 as "26.2 MB" or "25 MiB".
std::string format_bytes(std::int64_t bytes, ByteUnits units = ByteUnits::kDecimal);

// Bytes per second: "600GB/s", "100Gb/s" and "100Gbps" (bits), "12.5 GiB/s".
double parse_rate(std::string_view text);
// In bytes, never bits: "600 GB/s".
std::string format_rate(double bytes_per_second);

// Seconds: "3.75ms", "5min", "2h", "1h 30min", "250us"; a plain number is in seconds.
double parse_time(std::string_view text);
// In the unit that fits: "3.75 ms".
std::string format_time(double seconds);

// Counts of parameters, tokens, samples: "13B" is 13'000'000'000, "1.6M", "4,194,304", "5e8".
std::int64_t parse_count(std::string_view text);
// "13B", "1.6M".
std::string format_count(std::int64_t count);
// 4194304 as "4,194,304".
std::string format_grouped(std::int64_t count);

}  // namespace tessera
