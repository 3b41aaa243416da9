#include "tessera/core/units.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <string_view>

#include "tessera/core/errors.h"

namespace tessera {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

template <typename Function>
std::string usage_error(Function function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

void expect_mentions(const std::string& message, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    EXPECT_NE(message.find(word), std::string::npos) << "\"" << word << "\" not in: " << message;
  }
}

TEST(ParseBytes, AcceptsAllForms) {
  EXPECT_EQ(parse_bytes("200MB"), 200'000'000);
  EXPECT_EQ(parse_bytes("25MiB"), 25 * 1024 * 1024);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("0"), 0);
  EXPECT_EQ(parse_bytes("13B"), 13);
  EXPECT_EQ(parse_bytes("1.5GB"), 1'500'000'000);
  EXPECT_EQ(parse_bytes("4 KiB"), 4096);
  EXPECT_EQ(parse_bytes("  1kB "), 1000);
  EXPECT_EQ(parse_bytes("1KB"), 1000);
  EXPECT_EQ(parse_bytes("2TiB"), std::int64_t{2} << 40);
  EXPECT_EQ(parse_bytes("3PiB"), std::int64_t{3} << 50);
  EXPECT_EQ(parse_bytes("2EB"), 2'000'000'000'000'000'000);
  EXPECT_EQ(parse_bytes("4,194,304"), 4194304);
  EXPECT_EQ(parse_bytes(".5KiB"), 512);
  EXPECT_EQ(parse_bytes("1e6"), 1'000'000);
  EXPECT_EQ(parse_bytes("1e-3GB"), 1'000'000);
  EXPECT_EQ(parse_bytes("+7"), 7);
  EXPECT_EQ(parse_bytes("1.1KiB"), 1126);  // 1126.4
  EXPECT_EQ(parse_bytes("1.6KiB"), 1638);  // 1638.4
  EXPECT_EQ(parse_bytes("0.0005kB"), 1);   // one half rounds up
  EXPECT_EQ(parse_bytes("0e99999999999"), 0);
}

TEST(ParseBytes, IsExactBeyondThePrecisionOfADouble) {
  EXPECT_EQ(parse_bytes("9007199254740993"), 9007199254740993);
  EXPECT_EQ(parse_bytes("9223372036854775807"), kMost);
  EXPECT_EQ(parse_bytes("9223372036854775.807kB"), kMost);
  EXPECT_EQ(parse_bytes("0.000000000000000000000001EB"), 0);
}

TEST(ParseBytes, RejectsInvalidTexts) {
  expect_mentions(usage_error([] { parse_bytes("20 XB"); }),
                  {"\"20 XB\"", "character 4", "\"XB\"", "200MB"});
  expect_mentions(usage_error([] { parse_bytes("25M"); }), {"MB", "MiB", "could mean"});
  expect_mentions(usage_error([] { parse_bytes("25g"); }), {"GB", "GiB", "could mean"});
  expect_mentions(usage_error([] { parse_bytes("25Mb"); }), {"bits"});
  expect_mentions(usage_error([] { parse_bytes("25mib"); }), {"did you mean MiB"});
  expect_mentions(usage_error([] { parse_bytes("-5MB"); }), {"negative", "character 1"});
  expect_mentions(usage_error([] { parse_bytes("1.5"); }), {"whole number"});
  expect_mentions(usage_error([] { parse_bytes("1e-1"); }), {"whole number"});
  expect_mentions(usage_error([] { parse_bytes("1e-9999"); }), {"whole number"});
  expect_mentions(usage_error([] { parse_bytes("9223372036854775808"); }), {"too large"});
  expect_mentions(usage_error([] { parse_bytes("8EiB"); }), {"too large"});
  expect_mentions(usage_error([] { parse_bytes("1e999999999999"); }), {"too large"});
  expect_mentions(usage_error([] { parse_bytes(std::string(1000, '9')); }), {"too large"});
  for (const char* text : {"", " ", "MB", "nan", "inf", "NaNMB", ".", "1..5", "1,00", "1,0000",
                           ",100", "1,", "1,000,00", "12MB3", "0x10", "1 2", "1.5.5GB", "--1"}) {
    EXPECT_THROW(parse_bytes(text), UsageError) << text;
  }
}

TEST(ParseRate, AcceptsAllForms) {
  EXPECT_DOUBLE_EQ(parse_rate("600GB/s"), 600e9);
  EXPECT_DOUBLE_EQ(parse_rate("100Gb/s"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_rate("100Gbps"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_rate("100 Gbit/s"), 12.5e9);
  EXPECT_DOUBLE_EQ(parse_rate("1GiB/s"), 1073741824.0);
  EXPECT_DOUBLE_EQ(parse_rate("1.5 MB/s"), 1.5e6);
  EXPECT_DOUBLE_EQ(parse_rate("0B/s"), 0);
}

TEST(ParseRate, RejectsInvalidTexts) {
  expect_mentions(usage_error([] { parse_rate("600"); }), {"unit", "600GB/s"});
  expect_mentions(usage_error([] { parse_rate("600GB"); }), {"/s"});
  expect_mentions(usage_error([] { parse_rate("600XB/s"); }), {"\"XB\"", "character 4"});
  expect_mentions(usage_error([] { parse_rate("-1GB/s"); }), {"negative"});
  expect_mentions(usage_error([] { parse_rate("1e400GB/s"); }), {"range"});
  expect_mentions(usage_error([] { parse_rate("1e308GB/s"); }), {"range"});
  for (const char* text : {"", "/s", "1/s", "nanGB/s", "infGB/s", "1GB/min"}) {
    EXPECT_THROW(parse_rate(text), UsageError) << text;
  }
}

TEST(ParseTime, AcceptsAllForms) {
  EXPECT_EQ(parse_time("3.75ms"), 0.00375);
  EXPECT_EQ(parse_time("5min"), 300);
  EXPECT_EQ(parse_time("40.8 ms"), 0.0408);
  EXPECT_EQ(parse_time("2h"), 7200);
  EXPECT_EQ(parse_time("2d"), 172800);
  EXPECT_EQ(parse_time("250us"), 0.00025);
  EXPECT_EQ(parse_time("250\xc2\xb5s"), 0.00025);
  EXPECT_EQ(parse_time("7ns"), 7e-9);
  EXPECT_EQ(parse_time("2.5"), 2.5);
  EXPECT_EQ(parse_time("0"), 0);
  EXPECT_EQ(parse_time("1h30min"), 5400);
  EXPECT_EQ(parse_time("1 h 30 min 5 s"), 5405);
}

TEST(ParseTime, RejectsInvalidTexts) {
  expect_mentions(usage_error([] { parse_time("5m"); }), {"min", "ms", "could mean"});
  expect_mentions(usage_error([] { parse_time("5 mins"); }), {"did you mean min", "character 3"});
  expect_mentions(usage_error([] { parse_time("30min 1h"); }), {"descending"});
  expect_mentions(usage_error([] { parse_time("1h 30"); }), {"unit"});
  expect_mentions(usage_error([] { parse_time("-1s"); }), {"negative"});
  for (const char* text : {"", "s", "nan", "inf", "1e999", "1e308d", "1s1s", "5 parsecs"}) {
    EXPECT_THROW(parse_time(text), UsageError) << text;
  }
}

TEST(ParseCount, AcceptsAllForms) {
  EXPECT_EQ(parse_count("13B"), 13'000'000'000);
  EXPECT_EQ(parse_count("13b"), 13'000'000'000);
  EXPECT_EQ(parse_count("1.6M"), 1'600'000);
  EXPECT_EQ(parse_count("250k"), 250'000);
  EXPECT_EQ(parse_count("2T"), 2'000'000'000'000);
  EXPECT_EQ(parse_count("4,194,304"), 4194304);
  EXPECT_EQ(parse_count("5e8"), 500'000'000);
  EXPECT_EQ(parse_count("7"), 7);
}

TEST(ParseCount, RejectsInvalidTexts) {
  expect_mentions(usage_error([] { parse_count("1.5"); }), {"whole number"});
  expect_mentions(usage_error([] { parse_count("13Z"); }), {"\"Z\"", "character 3", "13B"});
  expect_mentions(usage_error([] { parse_count("99999999999T"); }), {"too large"});
  for (const char* text : {"", "B", "-3", "nan", "1.6 Mega", "12MB"}) {
    EXPECT_THROW(parse_count(text), UsageError) << text;
  }
}

TEST(Format, WritesBytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(200'000'000), "200 MB");
  EXPECT_EQ(format_bytes(1'500'000'000), "1.5 GB");
  EXPECT_EQ(format_bytes(999'600), "1 MB");
  EXPECT_EQ(format_bytes(1'234'567), "1.23 MB");
  EXPECT_EQ(format_bytes(-2000), "-2 kB");
  EXPECT_EQ(format_bytes(25 << 20, ByteUnits::kBinary), "25 MiB");
  EXPECT_EQ(format_bytes(1023, ByteUnits::kBinary), "1023 B");
  EXPECT_EQ(format_bytes(1126, ByteUnits::kBinary), "1.1 KiB");
  EXPECT_EQ(format_bytes((1 << 20) - 1, ByteUnits::kBinary), "1 MiB");
  EXPECT_EQ(format_bytes(kMost), "9.22 EB");
  EXPECT_EQ(format_bytes(std::numeric_limits<std::int64_t>::min()), "-9.22 EB");
}

TEST(Format, WritesRatesTimesAndCounts) {
  EXPECT_EQ(format_rate(600e9), "600 GB/s");
  EXPECT_EQ(format_rate(12.5e9), "12.5 GB/s");
  EXPECT_EQ(format_rate(0), "0 B/s");
  EXPECT_EQ(format_rate(std::nan("")), "nan");
  EXPECT_EQ(format_time(0), "0 s");
  EXPECT_EQ(format_time(-0.0), "0 s");
  EXPECT_EQ(format_time(-3e-17), "0 s");  // rounding error of a difference of sums
  EXPECT_EQ(format_time(3e-17), "0 s");
  EXPECT_EQ(format_time(-2e-11), "-0.02 ns");
  EXPECT_EQ(format_time(0.00375), "3.75 ms");
  EXPECT_EQ(format_time(0.0408), "40.8 ms");
  EXPECT_EQ(format_time(0.9996), "1 s");
  EXPECT_EQ(format_time(59.99), "1 min");
  EXPECT_EQ(format_time(300), "5 min");
  EXPECT_EQ(format_time(330), "5 min 30 s");
  EXPECT_EQ(format_time(5400), "1 h 30 min");
  EXPECT_EQ(format_time(3599.9), "1 h");
  EXPECT_EQ(format_time(86399), "1 d");
  EXPECT_EQ(format_time(90000), "1 d 1 h");
  EXPECT_EQ(format_time(-2), "-2 s");
  EXPECT_EQ(format_time(INFINITY), "inf");
  EXPECT_EQ(format_time(1e300), "1e+300 s");
  EXPECT_EQ(format_rate(1e300), "1e+282 EB/s");
  EXPECT_EQ(format_count(13'000'000'000), "13B");
  EXPECT_EQ(format_count(1'600'000), "1.6M");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_grouped(4194304), "4,194,304");
  EXPECT_EQ(format_grouped(-1000), "-1,000");
  EXPECT_EQ(format_grouped(999), "999");
}

// Log-uniform, so that every unit occurs.
std::int64_t any_size(std::mt19937_64& random) {
  return static_cast<std::int64_t>(random() >> (1 + random() % 63));
}

TEST(RoundTrip, KeepsBytesAndCounts) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 50000; ++i) {
    const std::int64_t value = any_size(random);
    if (value > 8'000'000'000'000'000'000) continue;  // may round up beyond the largest integer
    const double allowed = 0.0051 * static_cast<double>(value);
    const auto near = [&](std::int64_t back, const std::string& text) {
      EXPECT_LE(std::abs(static_cast<double>(back - value)), allowed) << value << " as " << text;
    };
    for (ByteUnits units : {ByteUnits::kDecimal, ByteUnits::kBinary}) {
      const std::string text = format_bytes(value, units);
      near(parse_bytes(text), text);
      // Formatting the parsed value gives the same text again.
      EXPECT_EQ(format_bytes(parse_bytes(text), units), text) << value;
    }
    near(parse_count(format_count(value)), format_count(value));
    EXPECT_EQ(parse_count(format_grouped(value)), value);
    EXPECT_EQ(parse_bytes(std::to_string(value)), value);
  }
}

TEST(RoundTrip, KeepsRatesAndTimes) {
  std::mt19937_64 random(8);
  std::uniform_real_distribution<double> exponent(-8, 9);
  for (int i = 0; i < 50000; ++i) {
    const double value = std::pow(10.0, exponent(random));
    const std::string time = format_time(value);
    EXPECT_NEAR(parse_time(time), value, (value < 60 ? 0.0051 : 0.021) * value) << time;
    const double rate = value * 1e9;
    EXPECT_NEAR(parse_rate(format_rate(rate)), rate, 0.0051 * rate) << format_rate(rate);
  }
}

// Never crashes and never returns a negative or non-finite value: parses or throws UsageError.
TEST(Fuzz, AnyInputParsesOrIsAUsageError) {
  static constexpr std::string_view kPieces[] = {"0",
                                                 "1",
                                                 "9",
                                                 "25",
                                                 "999",
                                                 ",",
                                                 ".",
                                                 "e",
                                                 "E",
                                                 "-",
                                                 "+",
                                                 " ",
                                                 "k",
                                                 "K",
                                                 "M",
                                                 "G",
                                                 "T",
                                                 "P",
                                                 "i",
                                                 "B",
                                                 "b",
                                                 "/s",
                                                 "ps",
                                                 "bit",
                                                 "ns",
                                                 "us",
                                                 "ms",
                                                 "s",
                                                 "min",
                                                 "h",
                                                 "d",
                                                 "MiB",
                                                 "GB",
                                                 "nan",
                                                 "inf",
                                                 "1e308",
                                                 "e-400",
                                                 "18446744073709551615",
                                                 "9223372036854775807",
                                                 ",000",
                                                 "\t",
                                                 "\xc2",
                                                 "\xb5s",
                                                 "x"};
  std::mt19937_64 random(2026);
  int parsed = 0, refused = 0;
  const auto attempt = [&](auto parse, const std::string& text) {
    try {
      const auto value = parse(text);
      EXPECT_TRUE(value >= 0 && std::isfinite(static_cast<double>(value))) << text;
      ++parsed;
    } catch (const UsageError& error) {
      EXPECT_NE(error.what()[0], '\0');
      ++refused;
    }
  };
  for (int i = 0; i < 240000; ++i) {
    std::string text;
    const std::size_t length = random() % 7;
    for (std::size_t j = 0; j < length; ++j) {
      if (random() % 8 == 0) {
        text += static_cast<char>(random() % 256);
      } else {
        text += kPieces[random() % std::size(kPieces)];
      }
    }
    switch (i % 4) {
      case 0: attempt([](const std::string& t) { return parse_bytes(t); }, text); break;
      case 1: attempt([](const std::string& t) { return parse_rate(t); }, text); break;
      case 2: attempt([](const std::string& t) { return parse_time(t); }, text); break;
      default: attempt([](const std::string& t) { return parse_count(t); }, text);
    }
  }
  EXPECT_GT(parsed, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace tessera
