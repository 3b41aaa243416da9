#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera {

// [Note: units]
// Parsing and formatting of sizes, rates, times and counts.
// - MB is always 10^6 bytes and MiB 2^20 bytes. "25M" is ambiguous and rejected as a size. A
//   lowercase b is a bit: "100Gb/s" is 12.5e9 bytes per second.
// - A number may have a fraction, an exponent and commas between groups of three digits. A space
//   may precede the unit.
// - Parsing throws UsageError with the text, the position and the accepted forms. Negative values,
//   NaN, infinities and values out of range are rejected.
// - Formatting keeps three significant digits (and always the whole integer part), so parsing a
//   formatted value returns it within 0.5%.

// Decimal (MB) or binary (MiB) prefixes.
enum class ByteUnits { kDecimal, kBinary };

// Parses bytes: "200MB" is 200'000'000, "25MiB" is 25 * 2^20, "4096", "4 KiB", "1.5GB". Fractions
// of a byte are rounded if there is a prefix and rejected otherwise.
std::int64_t parse_bytes(std::string_view text);
// Formats 25 * 2^20 as "26.2 MB" or "25 MiB".
std::string format_bytes(std::int64_t bytes, ByteUnits units = ByteUnits::kDecimal);

// Parses bytes per second: "600GB/s", "100Gb/s" and "100Gbps" (bits), "12.5 GiB/s".
double parse_rate(std::string_view text);
// Formats in bytes, never bits: "600 GB/s".
std::string format_rate(double bytes_per_second);

// Parses seconds: "3.75ms", "5min", "2h", "1h 30min", "250us". A plain number is in seconds.
double parse_time(std::string_view text);
// Formats with a suitable unit: "3.75 ms".
std::string format_time(double seconds);

// Parses a number of parameters, tokens or samples: "13B" is 13'000'000'000, "4,194,304", "5e8".
std::int64_t parse_count(std::string_view text);
// Formats as "13B", "1.6M".
std::string format_count(std::int64_t count);
// Formats 4194304 as "4,194,304".
std::string format_grouped(std::int64_t count);

}  // namespace tessera
