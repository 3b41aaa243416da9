#include "tessera/core/units.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <system_error>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/portable_math.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

__extension__ typedef unsigned __int128 Wide;

struct Unit {
  std::string_view name;
  std::uint64_t factor;
};

// Kind of value, for error messages.
struct Form {
  std::string_view what;
  std::string_view accepted;
};

constexpr Form kSize{"size", "200MB, 25MiB, 1.5GB, 4 KiB or 4096"};
constexpr Form kRate{"rate", "600GB/s, 12.5 GiB/s, or in bits 100Gb/s or 100Gbps"};
constexpr Form kTime{"time", "3.75ms, 250us, 40.8 s, 5min, 1h 30min, or plain seconds as 2.5"};
constexpr Form kCount{"count", "13B (10^9), 1.6M, 250k, 2T, 5e8 or 4,194,304"};

constexpr std::uint64_t kKilo = 1000, kKibi = 1024;
constexpr std::uint64_t kMega = kKilo * kKilo, kMebi = kKibi * kKibi;
constexpr std::uint64_t kGiga = kMega * kKilo, kGibi = kMebi * kKibi;
constexpr std::uint64_t kTera = kGiga * kKilo, kTebi = kGibi * kKibi;
constexpr std::uint64_t kPeta = kTera * kKilo, kPebi = kTebi * kKibi;
constexpr std::uint64_t kExa = kPeta * kKilo, kExbi = kPebi * kKibi;

const std::vector<Unit>& byte_units() {
  static const std::vector<Unit> units = {
      {"B", 1},       {"kB", kKilo},  {"KB", kKilo},  {"MB", kMega},  {"GB", kGiga},
      {"TB", kTera},  {"PB", kPeta},  {"EB", kExa},   {"KiB", kKibi}, {"kiB", kKibi},
      {"MiB", kMebi}, {"GiB", kGibi}, {"TiB", kTebi}, {"PiB", kPebi}, {"EiB", kExbi}};
  return units;
}

const std::vector<Unit>& bit_units() {
  static const std::vector<Unit> units = {
      {"b", 1},      {"kb", kKilo},   {"Kb", kKilo},   {"Mb", kMega},   {"Gb", kGiga},
      {"Tb", kTera}, {"kbit", kKilo}, {"Mbit", kMega}, {"Gbit", kGiga}, {"Tbit", kTera}};
  return units;
}

const std::vector<Unit>& count_units() {
  static const std::vector<Unit> units = {{"k", kKilo}, {"K", kKilo}, {"M", kMega}, {"m", kMega},
                                          {"B", kGiga}, {"b", kGiga}, {"T", kTera}, {"t", kTera}};
  return units;
}

// In nanoseconds.
const std::vector<Unit>& time_units() {
  static const std::vector<Unit> units = {{"ns", 1},
                                          {"us", kKilo},
                                          {"\xc2\xb5s", kKilo},  // micro sign
                                          {"\xce\xbcs", kKilo},  // Greek small mu
                                          {"ms", kMega},
                                          {"s", kGiga},
                                          {"sec", kGiga},
                                          {"min", 60 * kGiga},
                                          {"h", 3600 * kGiga},
                                          {"d", 86400 * kGiga}};
  return units;
}

const Unit* find_unit(const std::vector<Unit>& units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return &unit;
  }
  return nullptr;
}

std::vector<std::string> names(const std::vector<Unit>& units) {
  std::vector<std::string> result;
  for (const Unit& unit : units) result.emplace_back(unit.name);
  return result;
}

[[noreturn]] void fail(const Form& form, std::string_view text, std::size_t at,
                       const std::string& why) {
  throw UsageError(str("bad ", form.what, " ", quote(text), " at character ", at + 1, ": ", why,
                       "; write it as ", form.accepted));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t'; }

// Cursor over the text that reads numbers and words.
class Reader {
 public:
  Reader(const Form& form, std::string_view text) : form_(form), text_(text) {
    while (!text_.empty() && is_space(text_.back())) text_.remove_suffix(1);
    skip_spaces();
  }

  bool at_end() const { return at_ == text_.size(); }
  std::size_t at() const { return at_; }

  [[noreturn]] void fail_here(const std::string& why) const { fail(form_, text_, at_, why); }
  [[noreturn]] void fail_at(std::size_t at, const std::string& why) const {
    fail(form_, text_, at, why);
  }

  // A decimal number: value == digits * 10^exponent, exactly up to 19 significant digits.
  struct Number {
    std::uint64_t digits = 0;
    int exponent = 0;
    std::size_t at = 0;
    std::string plain;         // digits without commas and exponent
    int written_exponent = 0;  // exponent as written in the text
  };

  Number number() {
    Number result;
    result.at = at_;
    if (at_end()) fail_here("no number");
    if (peek() == '-') fail_here("a negative value");
    if (peek() == '+') ++at_;
    const std::size_t integer_digits = read_integer_part(result);
    const std::size_t fraction_digits = read_fraction(result);
    if (integer_digits + fraction_digits == 0) fail_at(result.at, "not a number");
    read_exponent(result);
    skip_spaces();
    return result;
  }

  // Reads up to the next digit or space.
  std::string_view word() {
    const std::size_t start = at_;
    while (!at_end() && !is_digit(peek()) && !is_space(peek())) ++at_;
    const std::string_view result = text_.substr(start, at_ - start);
    skip_spaces();
    return result;
  }

  std::string_view rest() {
    const std::string_view result = text_.substr(at_);
    at_ = text_.size();
    return result;
  }

 private:
  char peek() const { return text_[at_]; }
  void skip_spaces() {
    while (!at_end() && is_space(peek())) ++at_;
  }

  // Returns false if the digit does not fit; it then only increases the exponent.
  static bool push(Number& number, char digit) {
    constexpr std::uint64_t kFull = (std::numeric_limits<std::uint64_t>::max() - 9) / 10;
    if (number.digits > kFull) return false;
    number.digits = number.digits * 10 + static_cast<std::uint64_t>(digit - '0');
    return true;
  }

  std::size_t read_integer_part(Number& number) {
    std::size_t count = 0, group = 0;
    bool grouped = false;
    for (; !at_end(); ++at_) {
      const char c = peek();
      if (is_digit(c)) {
        if (grouped && group == 3) fail_here("a comma belongs between groups of three digits");
        if (!push(number, c)) ++number.exponent;
        number.plain += c;
        ++count;
        ++group;
      } else if (c == ',') {
        if (group == 0 || group > 3 || (grouped && group != 3)) {
          fail_here("a comma belongs between groups of three digits");
        }
        grouped = true;
        group = 0;
      } else {
        break;
      }
    }
    if (grouped && group != 3) fail_here("a comma belongs between groups of three digits");
    return count;
  }

  std::size_t read_fraction(Number& number) {
    if (at_end() || peek() != '.') return 0;
    ++at_;
    if (number.plain.empty()) number.plain = "0";
    number.plain += '.';
    std::size_t count = 0;
    for (; !at_end() && is_digit(peek()); ++at_, ++count) {
      if (push(number, peek())) --number.exponent;
      number.plain += peek();
    }
    if (count == 0) number.plain += '0';
    return count;
  }

  void read_exponent(Number& number) {
    if (at_end() || (peek() != 'e' && peek() != 'E')) return;
    std::size_t next = at_ + 1;
    bool negative = false;
    if (next < text_.size() && (text_[next] == '+' || text_[next] == '-')) {
      negative = text_[next++] == '-';
    }
    if (next == text_.size() || !is_digit(text_[next])) return;  // "2EB": "EB" is the unit
    int exponent = 0;
    for (; next < text_.size() && is_digit(text_[next]); ++next) {
      if (exponent < 10000) exponent = exponent * 10 + (text_[next] - '0');
    }
    number.written_exponent = negative ? -exponent : exponent;
    number.exponent += number.written_exponent;
    at_ = next;
  }

  Form form_;
  std::string_view text_;
  std::size_t at_ = 0;
};

// Returns digits * 10^exponent * factor rounded to the nearest integer. Uses 128 bits, so that
// every value that can be written exactly is parsed exactly.
std::int64_t to_integer(const Reader& reader, const Reader::Number& number, std::uint64_t factor) {
  constexpr Wide kMost = static_cast<Wide>(std::numeric_limits<std::int64_t>::max());
  Wide value = static_cast<Wide>(number.digits) * factor;
  int exponent = number.exponent;
  for (; exponent > 0 && value != 0 && value <= kMost; --exponent) value *= 10;
  if (exponent < 0 && value != 0) {
    Wide divisor = 1;
    for (; exponent < 0 && divisor <= value * 2; ++exponent) divisor *= 10;
    const Wide remainder = value % divisor;
    if (factor == 1 && (remainder != 0 || exponent < 0)) {
      reader.fail_at(number.at, "not a whole number");
    }
    value = value / divisor + (remainder >= divisor - remainder ? 1 : 0);
    if (exponent < 0) value = 0;
  }
  if (value > kMost) reader.fail_at(number.at, "too large (the largest value is 2^63 - 1)");
  return static_cast<std::int64_t>(value);
}

// Returns the double nearest to number * 10^shift. Shifting the decimal point before the conversion
// makes "40.8ms" the same double as 0.0408.
double to_double(const Reader& reader, const Reader::Number& number, int shift = 0) {
  double value = 0;
  const std::string text = str(number.plain, "e", number.written_exponent + shift);
  const std::errc problem = read_double(text, value);
  if (problem == std::errc::result_out_of_range) {
    reader.fail_at(number.at, "outside the range of a double");
  }
  if (problem != std::errc()) reader.fail_at(number.at, "not a number");
  return value;
}

// Returns why `unit` is not a unit of size, with specific help for the two common mistakes.
std::string bad_byte_unit(std::string_view unit) {
  if (unit.size() == 1 && std::string_view("kKmMgGtTpPeE").find(unit[0]) != std::string::npos) {
    const auto prefix = static_cast<char>(unit[0] >= 'a' ? unit[0] - 'a' + 'A' : unit[0]);
    return str("\"", unit, "\" could mean ", prefix, "B (powers of 1000) or ", prefix,
               "iB (powers of 1024)");
  }
  if (find_unit(bit_units(), unit) != nullptr) {
    return str("\"", unit, "\" counts bits; use bytes (with a capital B)");
  }
  return str("unknown unit ", quote(unit), did_you_mean(unit, names(byte_units())));
}

}  // namespace

std::int64_t parse_bytes(std::string_view text) {
  Reader reader(kSize, text);
  const Reader::Number number = reader.number();
  if (reader.at_end()) return to_integer(reader, number, 1);
  const std::size_t at = reader.at();
  const std::string_view name = reader.rest();
  const Unit* unit = find_unit(byte_units(), name);
  if (unit == nullptr) reader.fail_at(at, bad_byte_unit(name));
  return to_integer(reader, number, unit->factor);
}

double parse_rate(std::string_view text) {
  Reader reader(kRate, text);
  const Reader::Number number = reader.number();
  if (reader.at_end()) reader.fail_here("a rate needs a unit");
  const std::size_t at = reader.at();
  std::string_view name = reader.rest();
  if (!name.ends_with("/s") && !name.ends_with("ps")) {
    reader.fail_at(at, str("unit ", quote(name), " is not \"per second\": it must end in /s"));
  }
  name.remove_suffix(2);
  const Unit* unit = find_unit(byte_units(), name);
  const Unit* bits = unit != nullptr ? nullptr : find_unit(bit_units(), name);
  if (unit == nullptr && bits == nullptr) {
    reader.fail_at(at, str("unknown unit ", quote(name), did_you_mean(name, names(byte_units()))));
  }
  const double value = bits != nullptr
                           ? to_double(reader, number) / 8 * static_cast<double>(bits->factor)
                           : to_double(reader, number) * static_cast<double>(unit->factor);
  if (!std::isfinite(value)) reader.fail_at(number.at, "outside the range of a double");
  return value;
}

double parse_time(std::string_view text) {
  Reader reader(kTime, text);
  double total = 0;
  std::uint64_t previous = 0;
  do {
    const Reader::Number number = reader.number();
    if (reader.at_end() && previous == 0) return to_double(reader, number);
    const std::size_t at = reader.at();
    const std::string_view name = reader.word();
    if (name.empty()) reader.fail_at(at, "each part of a time needs a unit");
    const Unit* unit = find_unit(time_units(), name);
    if (unit == nullptr && name == "m") reader.fail_at(at, "\"m\" could mean min or ms");
    if (unit == nullptr) {
      reader.fail_at(at,
                     str("unknown unit ", quote(name), did_you_mean(name, names(time_units()))));
    }
    if (previous != 0 && unit->factor >= previous) {
      reader.fail_at(at, "the units of a time must be in descending order");
    }
    previous = unit->factor;
    if (unit->factor < kGiga) {
      total += to_double(reader, number, unit->factor == 1 ? -9 : unit->factor == kKilo ? -6 : -3);
    } else {
      total += to_double(reader, number) * static_cast<double>(unit->factor / kGiga);
    }
    if (!std::isfinite(total)) reader.fail_at(number.at, "outside the range of a double");
  } while (!reader.at_end());
  return total;
}

std::int64_t parse_count(std::string_view text) {
  Reader reader(kCount, text);
  const Reader::Number number = reader.number();
  if (reader.at_end()) return to_integer(reader, number, 1);
  const std::size_t at = reader.at();
  const std::string_view name = reader.rest();
  const Unit* unit = find_unit(count_units(), name);
  if (unit == nullptr) reader.fail_at(at, str("unknown unit ", quote(name)));
  return to_integer(reader, number, unit->factor);
}

// ---- Formatting ----

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
