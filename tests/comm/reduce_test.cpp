#include "tessera/comm/reduce.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/reduce_internal.h"

namespace tessera::comm {

void PrintTo(const Reduction& what, std::ostream* out) {
  *out << name(what.op) << " " << name(what.in) << " -> " << name(what.out) << " / "
       << what.divisor;
}

namespace {

using Bytes = std::vector<unsigned char>;

// Random bits; every third element is a critical value for conversions and comparisons.
template <class T>
void fill(Bytes& bytes, std::mt19937_64& random, const std::vector<T>& special) {
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  for (std::size_t i = 0; i + sizeof(T) <= bytes.size(); i += sizeof(T)) {
    if (random() % 3 == 0) std::memcpy(&bytes[i], &special[random() % special.size()], sizeof(T));
  }
}

void fill(DType type, Bytes& bytes, std::mt19937_64& random) {
  switch (type) {
    case DType::f32:  // zeros, subnormals, bf16 and f16 ties and limits, infinities, NaNs
      return fill<std::uint32_t>(
          bytes, random,
          {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x3f800000,
           0xbf800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f801000, 0x3f803000, 0x33000000,
           0x33000001, 0x33800000, 0x38800000, 0x387fffff, 0x477fe000, 0x477fefff, 0x477ff000,
           0x47800000, 0x7f7fffff, 0x7f7f8000, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000,
           0xffc00001, 0x7f800001, 0x7fffffff, 0xffffffff});
    case DType::f64:
      return fill<std::uint64_t>(
          bytes, random,
          {0, 1, 1ull << 63, 0x7ff0ull << 48, 0xfff0ull << 48, 0x7ff8ull << 48, ~0ull,
           0x7ff0000000000001, 0x3ff0ull << 48, 0x7fefffffffffffff, 0x0010ull << 48});
    case DType::bf16:
      return fill<std::uint16_t>(
          bytes, random,
          {0,      0x8000, 1,      0x8001, 0x7f,   0x80,   0x3f80, 0xbf80, 0x3f81, 0x3c00,
           0x3b80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x7fff, 0xffff});
    case DType::f16:
      return fill<std::uint16_t>(
          bytes, random,
          {0,      0x8000, 1,      0x8001, 0x3ff,  0x400,  0x3c00, 0xbc00, 0x3c01, 0x1000, 0x1400,
           0x7bff, 0xfbff, 0x4c00, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x7fff, 0xffff});
    case DType::i32:
      return fill<std::uint32_t>(bytes, random, {0, 1, 0xffffffff, 0x7fffffff, 0x80000000});
    case DType::i64:
      return fill<std::uint64_t>(bytes, random, {0, 1, ~0ull, ~0ull >> 1, 1ull << 63});
    default: return fill<unsigned char>(bytes, random, {0, 1, 127, 128, 255});
  }
}

void check(const Reduction& what, FindKernel finder, const std::vector<Bytes>& inputs,
           std::size_t destinations, std::size_t count, std::size_t offset, bool in_place) {
  constexpr std::size_t guard = 8;
  const std::size_t out_bytes = count * size_of(what.out);
  std::vector<Bytes> sources = inputs, wanted(1, Bytes(out_bytes));
  std::vector<Bytes> outputs(destinations, Bytes(offset + out_bytes + guard, 0xa5));
  std::vector<const void*> from;
  std::vector<void*> to, to_wanted = {wanted[0].data()};
  for (Bytes& source : sources) from.push_back(source.data() + offset);
  reduce_reference(what, from, to_wanted, count);
  for (std::size_t d = 0; d < destinations; ++d) {
    to.push_back((in_place ? sources[d] : outputs[d]).data() + offset);
  }
  if (finder != nullptr) {
    reduce_with(finder, what, from, to, count);
  } else {
    reduce(what, from, to, count);
  }
  for (std::size_t d = 0; d < destinations; ++d) {
    const auto* got = static_cast<const unsigned char*>(to[d]);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size = size_of(what.out);
      if (std::memcmp(got + i * size, &wanted[0][i * size], size) == 0) continue;
      std::string message;
      for (std::size_t b = size; b-- > 0;) {
        char text[16];
        std::snprintf(text, sizeof text, "%02x|%02x ", got[i * size + b], wanted[0][i * size + b]);
        message += text;
      }
      FAIL() << testing::PrintToString(what) << ", " << sources.size() << " sources, destination "
             << d << " of " << destinations << ", element " << i << " of " << count << ", offset "
             << offset << (in_place ? ", in place" : "") << ": bytes got|expected " << message;
    }
    if (in_place) continue;
    const auto untouched = [](unsigned char byte) { return byte == 0xa5; };
    ASSERT_TRUE(std::all_of(outputs[d].begin(), outputs[d].begin() + offset, untouched));
    ASSERT_TRUE(std::all_of(outputs[d].end() - guard, outputs[d].end(), untouched));
  }
}

// Tests every usable set, because reduce() only uses the fastest one.
void expect_all_like_reference(const Reduction& what, const std::vector<Bytes>& sources,
                               std::size_t destinations, std::size_t count, std::size_t offset,
                               bool in_place) {
  check(what, nullptr, sources, destinations, count, offset, in_place);
  for (const ReduceSet& set : usable_reduce_sets()) {
    SCOPED_TRACE(set.name);
    check(what, set.find_kernel, sources, destinations, count, offset, in_place);
  }
}

std::vector<Reduction> all_reductions() {
  using enum DType;
  constexpr std::pair<DType, DType> pairs[] = {{f32, f32}, {f64, f64},  {bf16, bf16}, {f16, f16},
                                               {i32, i32}, {i64, i64},  {u8, u8},     {bf16, f32},
                                               {f16, f32}, {f32, bf16}, {f32, f16}};
  std::vector<Reduction> all;
  for (const auto& [in, out] : pairs) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      all.push_back({in, out, op, 1});
    }
    for (const std::int64_t divisor : {1, 2, 3, 8, 9, 1000003}) {
      all.push_back({in, out, ReduceOp::avg, divisor});
    }
  }
  return all;
}

class EveryReduction : public testing::TestWithParam<Reduction> {};

TEST_P(EveryReduction, MatchesTheReferenceBitwise) {
  std::mt19937_64 random(7);
  for (std::size_t sources = 1; sources <= 9; ++sources) {
    for (std::size_t destinations = 1; destinations <= 4; ++destinations) {
      for (const std::size_t count : {0, 1, 3, 15, 16, 31, 32, 65, 129, 386}) {
        const std::size_t offset = random() % 8;  // in bytes: elements need not be aligned
        std::vector<Bytes> inputs(sources, Bytes(offset + count * size_of(GetParam().in)));
        for (Bytes& input : inputs) fill(GetParam().in, input, random);
        expect_all_like_reference(GetParam(), inputs, destinations, count, offset, false);
        const bool can_alias = GetParam().in == GetParam().out && destinations <= sources;
        if (can_alias)
          expect_all_like_reference(GetParam(), inputs, destinations, count, offset, true);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(EveryReduction, DoesNotDependOnTheDivisionOfTheRange) {
  const Reduction what = GetParam();
  const std::size_t in = size_of(what.in), out = size_of(what.out), count = 1000;
  std::mt19937_64 random(11);
  std::vector<Bytes> inputs(3, Bytes(count * in));
  for (Bytes& input : inputs) fill(what.in, input, random);
  Bytes whole(count * out), pieces(count * out);
  const void* const from[] = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
  void* const to[] = {whole.data()};
  reduce(what, from, to, count);
  for (std::size_t at = 0; at < count;) {
    const std::size_t n = std::min<std::size_t>(1 + random() % 90, count - at);
    const void* const piece[] = {&inputs[0][at * in], &inputs[1][at * in], &inputs[2][at * in]};
    void* const piece_to[] = {&pieces[at * out]};
    reduce(what, piece, piece_to, n);
    at += n;
  }
  EXPECT_EQ(whole, pieces);
}

std::string test_name(const testing::TestParamInfo<Reduction>& info) {
  const Reduction& what = info.param;
  return std::string(name(what.op)) + "_" + name(what.in) + "_" + name(what.out) + "_" +
         std::to_string(what.divisor);
}
INSTANTIATE_TEST_SUITE_P(Reduce, EveryReduction, testing::ValuesIn(all_reductions()), test_name);

}  // namespace
}  // namespace tessera::comm
