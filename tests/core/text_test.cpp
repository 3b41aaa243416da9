#include "tessera/core/text.h"

#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <locale>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/core/portable_math.h"

namespace tessera {
namespace {

TEST(Text, VisibleEscapesControlsAndCutsLongText) {
  EXPECT_EQ(visible("plain \"text\" \\ é 日"), "plain \"text\" \\ é 日");
  EXPECT_EQ(visible("\x1b[31mred\a\n\t\x7f"), "\\x1b[31mred\\x07\\n\\t\\x7f");
  EXPECT_EQ(visible("\xff\xc3"), "\\xff\\xc3");         // not UTF-8
  EXPECT_EQ(visible("\xc2\x9b"), "\\xc2\\x9b");         // CSI as one character
  EXPECT_EQ(visible("a\u202eb"), "a\\xe2\\x80\\xaeb");  // reverses the writing direction
  EXPECT_EQ(visible(std::string(100, 'a'), 40),
            std::string(30, 'a') + "[... 60 bytes ...]" + std::string(10, 'a'));
  // Multi-byte characters are not split.
  std::string many;
  for (int i = 0; i < 50; ++i) many += "日";
  EXPECT_EQ(visible(many, 40).find('\\'), std::string::npos);
  EXPECT_EQ(visible_lines("a\n\tb\x1b"), "a\n\tb\\x1b");
  EXPECT_LT(visible_lines(std::string(1 << 20, 'x')).size(), 33'000u);
}

TEST(Text, StrConcatenatesItsArguments) {
  EXPECT_EQ(str("rank ", 3, " of ", 4, ": ", true, ' ', 0.5), "rank 3 of 4: true 0.5");
  EXPECT_EQ(str(), "");
}

// Reference: str() must write what a stream writes.
template <typename... Args>
std::string streamed(const Args&... args) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::boolalpha;
  ((out << args), ...);
  return out.str();
}

enum Plain { kSeven = 7 };
struct Own {
  int value;
  friend std::ostream& operator<<(std::ostream& out, const Own& own) {
    return out << own.value << ' ' << true;
  }
};

TEST(Text, StrEqualsAStream) {
  const std::int8_t byte = 'b';
  const std::uint8_t unsigned_byte = 'u';
  char array[8] = "ab";
  char* const pointer = array;
  EXPECT_EQ(
      str(byte, unsigned_byte, 'c', array, pointer, std::string_view("v"), std::string("s")),
      streamed(byte, unsigned_byte, 'c', array, pointer, std::string_view("v"), std::string("s")));
  EXPECT_EQ(
      str(kSeven, Own{3}, static_cast<const void*>(array), 1.5L, std::filesystem::path("/a")),
      streamed(kSeven, Own{3}, static_cast<const void*>(array), 1.5L, std::filesystem::path("/a")));
  EXPECT_EQ(str(std::string(100'000, 'x'), 1), std::string(100'000, 'x') + "1");
  EXPECT_EQ(str(std::string("a\0b", 3)), std::string("a\0b", 3));
  const auto all = [](auto value) { EXPECT_EQ(str(value), streamed(value)); };
  const auto edges = [&]<typename T>(T) {
    all(std::numeric_limits<T>::lowest());
    all(std::numeric_limits<T>::max());
    all(std::numeric_limits<T>::min());
    all(static_cast<T>(0));
    all(static_cast<T>(100));
  };
  edges(short{}), edges(0), edges(0L), edges(0LL), edges(0.0), edges(0.0f);
  edges(static_cast<unsigned short>(0)), edges(0U), edges(0UL), edges(0ULL);
  all(std::numeric_limits<double>::infinity()), all(-std::numeric_limits<double>::infinity());
  all(std::nan("")), all(-std::nan("")), all(-0.0), all(std::numeric_limits<double>::denorm_min());
}

TEST(Text, StrWritesNumbersLikeAStream) {
  std::mt19937_64 random(1);
  const auto same = [](auto value) {
    const std::string got = str(value), wanted = streamed(value);
    if (got != wanted) ADD_FAILURE() << got << " is not " << wanted;
  };
  for (int i = 0; i < 50'000; ++i) {
    const std::uint64_t bits = random();
    same(static_cast<std::int64_t>(bits) >> (bits % 64));
    same(bits >> (bits % 64));
    same(std::bit_cast<double>(bits));
    same(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    same(static_cast<double>(bits % 2'000'000) / 1000);
    same(std::uniform_real_distribution<>(0, 1)(random));
  }
  // Values that round up to seven digits, and values at which the exponent appears.
  for (int exponent = -320; exponent < 309; ++exponent) {
    for (const double digits : {1.0, 9.999995, 9.99999499999, 1.0000005, 2.5, 9.9999}) {
      same(digits * std::pow(10.0, exponent));
    }
  }
}

TEST(Text, FixedAndHexWriteTheirDigits) {
  EXPECT_EQ(fixed(2.5, 2), "2.50");
  EXPECT_EQ(fixed(-0.04, 1), "-0.0");
  EXPECT_EQ(fixed(1e300, 0).size(), 301u);
  EXPECT_EQ(fixed(std::nan(""), 1), "nan");
  EXPECT_EQ(hex(10), "a");
  EXPECT_EQ(hex(10, 4), "000a");
  EXPECT_EQ(hex(~std::uint64_t{0}, 4), "ffffffffffffffff");
}

TEST(Text, JoinPutsSeparatorsBetweenParts) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
}

TEST(Text, QuoteIsPrintableAndShort) {
  EXPECT_EQ(quote("25MB"), "\"25MB\"");
  EXPECT_EQ(quote("a\"b\\c\n\t\x01"), R"("a\"b\\c\n\t\x01")");
  EXPECT_EQ(quote("\xc2\xb5s"), R"("\xc2\xb5s")");
  EXPECT_LT(quote(std::string(100000, 'x')).size(), 100u);
}

TEST(Text, EditDistanceCountsTranspositionsAsOne) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("rnaks", "ranks"), 1);  // transposition
  EXPECT_EQ(edit_distance("ranks", "rank"), 1);
}

TEST(Text, SuggestFindsTheNearestAndNothingFar) {
  const std::vector<std::string> flags = {"--ranks", "--rails", "--json", "--sizes"};
  EXPECT_EQ(suggest("--rnaks", flags), "--ranks");
  EXPECT_EQ(suggest("--RANKS", flags), "--ranks");
  EXPECT_EQ(suggest("--size", flags), "--sizes");
  EXPECT_EQ(suggest("--verbose", flags), "");
  EXPECT_EQ(suggest("", flags), "");
  EXPECT_EQ(suggest("x", {"y"}), "");
  EXPECT_EQ(suggest("--gpus", {"--eps", "--ranks"}),
            "");  // two of four letters differ; dashes do not count
  EXPECT_EQ(suggest("docter", {"run", "doctor", "bench"}), "doctor");
  EXPECT_EQ(suggest(std::string(1 << 20, 'a'), flags), "");
}

TEST(Text, DidYouMeanIsEmptyWithoutASuggestion) {
  EXPECT_EQ(did_you_mean("benhc", {"run", "bench"}), "; did you mean bench?");
  EXPECT_EQ(did_you_mean("elephant", {"run", "bench"}), "");
}

TEST(Text, ShortestEqualsToChars) {
  std::mt19937_64 random(1);
  char digits[64];
  const auto check = [&](double value) {
    char* const end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    EXPECT_EQ(shortest(value), std::string(static_cast<char*>(digits), end));
    double read = 0;
    EXPECT_EQ(read_double(shortest(value), read), std::errc());
    EXPECT_EQ(std::bit_cast<std::uint64_t>(read), std::bit_cast<std::uint64_t>(value));
  };
  for (const double value : {0.0, -0.0, 1.0, 0.5, 6e-4, 0.0012, 1e5, 123456.0, 1e16, 1e22, 5e-324,
                             1.7976931348623157e308, 12345678901234567890.0, 0.1 + 0.2}) {
    check(value);
    check(-value);
  }
  for (int i = 0; i < 100000; ++i) {
    const double any = std::bit_cast<double>(random());
    if (std::isfinite(any)) check(any);
    // Few digits, and exponents near the change of notation.
    check(static_cast<double>(random() % 100000) *
          std::pow(10.0, static_cast<int>(random() % 30) - 15));
  }
}

TEST(Text, ReadDoubleAcceptsOnlyFiniteDecimalNumbers) {
  double value = 7;
  for (const char* const bad :
       {"", " 1", "1 ", "+1", "0x10", "nan", "inf", "1,5", "1e", "-", "."}) {
    EXPECT_EQ(read_double(bad, value), std::errc::invalid_argument) << bad;
  }
  EXPECT_EQ(read_double("1e999", value), std::errc::result_out_of_range);
  EXPECT_EQ(value, 7);
  for (const char* const good : {"1", "-1.5", ".5", "5.", "1e-3", "2E+5"}) {
    EXPECT_EQ(read_double(good, value), std::errc()) << good;
    EXPECT_EQ(value, std::stod(good));
  }
}

TEST(Text, PluralOfOneIsSingular) {
  EXPECT_EQ(plural(0, "bucket"), "0 buckets");
  EXPECT_EQ(plural(1, "bucket"), "1 bucket");
  EXPECT_EQ(plural(2, "bucket"), "2 buckets");
}

}  // namespace
}  // namespace tessera
