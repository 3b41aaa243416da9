// Reductions whose results are known without the reference: conversions, orders, limits, errors.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tessera/comm/copy.h"
#include "tessera/comm/reduce.h"
#include "tessera/comm/reduce_internal.h"
#include "tessera/core/errors.h"

namespace tessera::comm {
namespace {

template <class Out, class In>
std::vector<Out> reduced(const Reduction& what, const std::vector<std::vector<In>>& inputs) {
  std::vector<Out> fast(inputs[0].size()), slow = fast;
  std::vector<const void*> from;
  for (const auto& input : inputs) from.push_back(input.data());
  void *const to[] = {fast.data()}, *const to_slow[] = {slow.data()};
  reduce(what, from, to, fast.size());
  reduce_reference(what, from, to_slow, slow.size());
  EXPECT_EQ(0, std::memcmp(fast.data(), slow.data(), fast.size() * sizeof(Out)));
  for (const ReduceSet& set : usable_reduce_sets()) {
    std::vector<Out> other(fast.size());
    void* const to_other[] = {other.data()};
    reduce_with(set.find_kernel, what, from, to_other, other.size());
    EXPECT_EQ(0, std::memcmp(fast.data(), other.data(), fast.size() * sizeof(Out))) << set.name;
  }
  return fast;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class HalfFormat : public testing::TestWithParam<DType> {
 protected:
  const int fraction_ = GetParam() == DType::bf16 ? 7 : 10;
  const int bias_ = GetParam() == DType::bf16 ? 127 : 15;
  const std::uint16_t infinity_ = GetParam() == DType::bf16 ? 0x7f80 : 0x7c00;
  const std::uint16_t nan_ = GetParam() == DType::bf16 ? 0x7fc0 : 0x7e00;

  std::vector<std::uint16_t> every() const {
    std::vector<std::uint16_t> all(65536);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
    return all;
  }
  std::vector<float> widen(const std::vector<std::uint16_t>& bits) const {
    return reduced<float, std::uint16_t>({GetParam(), DType::f32, ReduceOp::sum, 1}, {bits});
  }
  std::vector<std::uint16_t> narrow(const std::vector<float>& values) const {
    return reduced<std::uint16_t, float>({DType::f32, GetParam(), ReduceOp::sum, 1}, {values});
  }
};

TEST_P(HalfFormat, WidensEveryValueExactly) {
  const auto wide = widen(every());
  for (int bits = 0; bits < 65536; ++bits) {
    const int magnitude = bits & 0x7fff, exponent = magnitude >> fraction_;
    const int hidden = exponent > 0 ? 1 << fraction_ : 0;
    const int digits = hidden + (magnitude & ((1 << fraction_) - 1));
    double value = std::ldexp(digits, std::max(exponent, 1) - bias_ - fraction_);
    if (magnitude == infinity_) value = kInfinity;
    if (magnitude > infinity_) {
      ASSERT_EQ(0x7fc00000u, std::bit_cast<std::uint32_t>(wide[bits])) << bits;
    } else {
      ASSERT_EQ(bits & 0x8000 ? -value : value, wide[bits]) << bits;
      ASSERT_EQ((bits & 0x8000) != 0, std::signbit(wide[bits])) << bits;
    }
  }
}

TEST_P(HalfFormat, NarrowsEveryValueBackToItself) {
  const auto back = narrow(widen(every()));
  for (int bits = 0; bits < 65536; ++bits) {
    ASSERT_EQ((bits & 0x7fff) > infinity_ ? nan_ : bits, back[bits]) << bits;
  }
}

TEST_P(HalfFormat, RoundsToNearestAndTiesToEven) {
  const auto wide = widen(every());
  std::vector<float> ties, below, above;
  for (std::uint16_t bits = 0; bits < infinity_; ++bits) {
    // The successor of the largest number, if exponents continued: it rounds to infinity.
    const double next = bits + 1 < infinity_ ? wide[bits + 1] : 2.0 * wide[bits] - wide[bits - 1];
    ties.push_back(static_cast<float>((wide[bits] + next) / 2));
    below.push_back(std::nextafter(ties.back(), 0.0f));
    above.push_back(std::nextafter(ties.back(), kInfinity));
  }
  const auto at_tie = narrow(ties), under = narrow(below), over = narrow(above);
  for (auto* values : {&ties, &below, &above}) {
    for (float& value : *values) value = -value;
  }
  const auto negative = narrow(ties), negative_under = narrow(below), negative_over = narrow(above);
  for (std::uint16_t bits = 0; bits < infinity_; ++bits) {
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(even, at_tie[bits]);
    ASSERT_EQ(bits, under[bits]);
    ASSERT_EQ(bits + 1, over[bits]);
    ASSERT_EQ(even | 0x8000, negative[bits]);
    ASSERT_EQ(bits | 0x8000, negative_under[bits]);
    ASSERT_EQ((bits + 1) | 0x8000, negative_over[bits]);
  }
}

TEST_P(HalfFormat, RoundsOnceAfterTheWholeSum) {
  const std::uint16_t one = narrow({1.0f})[0];
  const float tiny = std::ldexp(1.0f, -fraction_ - 2);  // a quarter of the last place of 1
  const std::uint16_t quarter = narrow({tiny})[0];
  const std::vector<std::vector<std::uint16_t>> inputs = {{one}, {quarter}, {quarter}, {quarter}};
  // Rounded after each addition it would stay 1.
  EXPECT_EQ(one + 1, reduced<std::uint16_t>({GetParam(), GetParam()}, inputs)[0]);
}

TEST_P(HalfFormat, KeepsNanAndOverflowsToInfinity) {
  const std::vector<float> values = {
      kNan,    -kNan,   std::bit_cast<float>(0x7f800001u), std::bit_cast<float>(0xffffffffu),
      3.4e38f, -3.4e38f};
  const std::uint16_t minus = infinity_ | 0x8000;
  EXPECT_EQ((std::vector<std::uint16_t>{nan_, nan_, nan_, nan_, infinity_, minus}), narrow(values));
}

INSTANTIATE_TEST_SUITE_P(Reduce, HalfFormat, testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name(info.param)); });

// ---- operations ----

TEST(ReduceValues, FloatSumsKeepTheOrderOfTheSources) {
  const float big = 0x1p24f;
  const std::vector<std::vector<float>> inputs = {{big}, {1.0f}, {1.0f}, {-big}};
  EXPECT_EQ(0.0f, reduced<float>({}, inputs)[0]);  // (big + 1) rounds to big, twice
  const std::vector<std::vector<float>> other = {{1.0f}, {1.0f}, {big}, {-big}};
  EXPECT_EQ(2.0f, reduced<float>({}, other)[0]);
}

TEST(ReduceValues, NegativeZeroIsKept) {
  const std::vector<std::vector<float>> inputs = {{-0.0f, -0.0f, 0.0f}, {-0.0f, 0.0f, -0.0f}};
  const auto signs = [&](ReduceOp op) {
    std::vector<bool> signs;
    for (const float value : reduced<float>({.op = op}, inputs))
      signs.push_back(std::signbit(value));
    return signs;
  };
  EXPECT_EQ((std::vector<bool>{true, false, false}), signs(ReduceOp::sum));
  EXPECT_EQ((std::vector<bool>{true, true, true}), signs(ReduceOp::min));
  EXPECT_EQ((std::vector<bool>{true, false, false}), signs(ReduceOp::max));
}

TEST(ReduceValues, PropagatesNan) {
  const float payload = std::bit_cast<float>(0xffc12345u);
  const std::vector<std::vector<float>> inputs = {{payload, 1.0f, kInfinity},
                                                  {1.0f, payload, kNan}};
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max}) {
    for (const float value : reduced<float>({.op = op}, inputs)) {
      EXPECT_EQ(0x7fc00000u, std::bit_cast<std::uint32_t>(value)) << name(op);
    }
  }
  const auto sum = reduced<float>({}, std::vector<std::vector<float>>{{kInfinity}, {-kInfinity}});
  EXPECT_EQ(0x7fc00000u, std::bit_cast<std::uint32_t>(sum[0]));
}

TEST(ReduceValues, OneSourceIsACopyOfItsBytes) {
  const std::vector<std::uint32_t> bits = {0xffc12345u, 0x7f800001u, 0x80000000u, 1};
  EXPECT_EQ(bits, reduced<std::uint32_t>({}, std::vector<std::vector<std::uint32_t>>{bits}));
}

TEST(ReduceValues, AverageDividesOnce) {
  const std::vector<std::vector<float>> inputs = {{1.0f, 3.0e38f}, {1.0f, 3.0e38f}, {3.0f, 0.0f}};
  const auto average = reduced<float>({.op = ReduceOp::avg, .divisor = 3}, inputs);
  EXPECT_EQ(5.0f / 3.0f, average[0]);
  EXPECT_EQ(kInfinity, average[1]);  // the sum overflows before the division
}

TEST(ReduceValues, IntegersWrapAndTruncate) {
  using I = std::vector<std::int32_t>;
  const std::vector<I> inputs = {{2147483647, -7, 2147483647}, {1, 0, 2147483647}};
  const Reduction sum = {DType::i32, DType::i32, ReduceOp::sum, 1};
  const Reduction average = {DType::i32, DType::i32, ReduceOp::avg, 2};
  EXPECT_EQ((I{-2147483647 - 1, -7, -2}), reduced<std::int32_t>(sum, inputs));
  EXPECT_EQ((I{1 << 30, -3, 2147483647}), reduced<std::int32_t>(average, inputs));
  using U = std::vector<std::uint8_t>;
  const std::vector<U> bytes = {{200, 255}, {100, 254}};
  EXPECT_EQ((U{44, 253}), reduced<std::uint8_t>({DType::u8, DType::u8, ReduceOp::sum, 1}, bytes));
  EXPECT_EQ((U{150, 254}), reduced<std::uint8_t>({DType::u8, DType::u8, ReduceOp::avg, 2}, bytes));
}

// A few more than 2^31 elements in little memory: one block is mapped repeatedly.
TEST(ReduceValues, CountsAbove2To31) {
#if !defined(__OPTIMIZE__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "fast only when optimized; the thread sanitizer uses four times the memory";
#endif
  const std::size_t block = std::size_t{64} << 20, blocks = 33, count = (std::size_t{1} << 31) + 77;
  const auto repeated = [&](unsigned char value) {
    const int file = memfd_create("reduce_test", 0);
    EXPECT_EQ(0, ftruncate(file, static_cast<off_t>(block)));
    void* const all = mmap(nullptr, block * blocks, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (std::size_t b = 0; b < blocks; ++b) {
      EXPECT_NE(MAP_FAILED, mmap(static_cast<char*>(all) + b * block, block, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_FIXED, file, 0));
    }
    close(file);
    std::memset(all, value, block);
    return static_cast<unsigned char*>(all);
  };
  unsigned char *const a = repeated(30), *const b = repeated(12), *const sum = repeated(0);
  const void* const from[] = {a, b};
  void* const to[] = {sum};
  const std::size_t last = (count - 1) % block;  // written by the last pass only up to here
  reduce({DType::u8, DType::u8, ReduceOp::sum, 1}, from, to, count);
  EXPECT_TRUE(std::all_of(sum, sum + block, [](unsigned char value) { return value == 42; }));
  a[last] = 40;
  reduce({DType::u8, DType::u8, ReduceOp::sum, 1}, from, to, count);
  EXPECT_EQ(52, sum[last]);
  EXPECT_EQ(42, sum[last + 1]);
  for (unsigned char* memory : {a, b, sum}) munmap(memory, block * blocks);
}

TEST(ReduceValues, RejectsInvalidReductions) {
  const std::vector<float> value = {1.0f};
  const void* const from[] = {value.data()};
  const auto call = [&](const Reduction& what) { reduce(what, from, {}, 1); };
  EXPECT_THROW(reduce({}, {}, {}, 1), UsageError);
  EXPECT_THROW(call({.op = ReduceOp::avg, .divisor = 0}), UsageError);
  EXPECT_THROW(call({.op = ReduceOp::sum, .divisor = 2}), UsageError);
  EXPECT_THROW(call({.in = DType::f32, .out = DType::f64}), UsageError);
  EXPECT_THROW(call({.in = DType::bf16, .out = DType::f16}), UsageError);
  EXPECT_THROW(call({.in = DType::i32, .out = DType::f32}), UsageError);
}

TEST(CopyBytes, AllowsEqualRangesAndZeroBytes) {
  std::vector<char> from(1000, 'x'), to(1000, 'y');
  copy_bytes(to.data() + 1, from.data(), 998);
  EXPECT_EQ('y' + std::string(998, 'x') + 'y', std::string(to.begin(), to.end()));
  copy_bytes(to.data(), to.data(), to.size());
  copy_bytes(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace tessera::comm
