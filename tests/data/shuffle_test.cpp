#include "tessera/data/shuffle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tessera/core/errors.h"

namespace tessera::data {
namespace {

std::vector<std::uint64_t> order(const Shuffle& shuffle, std::uint64_t epoch) {
  std::vector<std::uint64_t> out(shuffle.size());
  for (std::uint64_t i = 0; i < shuffle.size(); ++i) out[i] = shuffle.at(epoch, i);
  return out;
}

bool each_once(const std::vector<std::uint64_t>& order) {
  std::vector<bool> seen(order.size());
  for (const std::uint64_t at : order) {
    if (at >= order.size() || seen[at]) return false;
    seen[at] = true;
  }
  return true;
}

// Sanitizers make each check many times slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kEvery = 29;
#else
constexpr std::uint64_t kEvery = 1;
#endif
TEST(Shuffle, IsAPermutationForAllSizes) {
  for (std::uint64_t size = 1; size <= 5000; size += kEvery) {
    EXPECT_TRUE(each_once(order(Shuffle(size, 7), size % 3))) << size;
  }
  for (const std::uint64_t size : {4095, 4096, 4097, 5000, 65535, 65536, 65537, 300000}) {
    EXPECT_TRUE(each_once(order(Shuffle(size, 1), 2))) << size;
  }
}

// For sizes that no list could hold: values at neighboring positions are in range and distinct.
TEST(Shuffle, IsInjectiveForHugeSizes) {
  for (const std::uint64_t size :
       {(std::uint64_t{1} << 40) + 12345, std::uint64_t{1} << 53, std::uint64_t{1} << 62}) {
    const Shuffle shuffle(size, 3);
    std::vector<std::uint64_t> got;
    for (std::uint64_t i = 0; i < 500; ++i) {
      got.push_back(shuffle.at(1, i));
      got.push_back(shuffle.at(1, size - 1 - i));
    }
    std::sort(got.begin(), got.end());
    EXPECT_EQ(std::adjacent_find(got.begin(), got.end()), got.end());
    EXPECT_LT(got.back(), size);
    EXPECT_GT(got.back(), size / 2);  // not all from one end
    EXPECT_LT(got.front(), size / 2);
  }
}

TEST(Shuffle, DiffersByEpochSeedAndStream) {
  for (const std::uint64_t size : {50, 1000}) {
    const auto first = order(Shuffle(size, 5), 0);
    EXPECT_EQ(order(Shuffle(size, 5), 0), first);
    std::vector<std::uint64_t> plain(size);
    std::iota(plain.begin(), plain.end(), std::uint64_t{0});
    EXPECT_NE(first, plain);
    for (const auto& other : {order(Shuffle(size, 5), 1), order(Shuffle(size, 6), 0),
                              order(Shuffle(size, 5, 1), 0), order(Shuffle(size, 5), 1ull << 40)}) {
      EXPECT_NE(other, first);
      std::uint64_t same = 0;
      for (std::uint64_t i = 0; i < size; ++i) same += other[i] == first[i] ? 1 : 0;
      EXPECT_LE(same, 12u) << size;  // one match is expected
    }
  }
}

// Over many epochs every number occurs at every position about equally often: chi-square of each
// pair.
TEST(Shuffle, LooksUniform) {
  for (const std::uint64_t size : {2, 3, 5, 16, 37}) {
    const std::uint64_t epochs = 200 * size;
    std::vector<double> seen(size * size);
    const Shuffle shuffle(size, 11);
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      for (std::uint64_t i = 0; i < size; ++i) ++seen[i * size + shuffle.at(epoch, i)];
    }
    const double expected = static_cast<double>(epochs) / static_cast<double>(size);
    double chi = 0;
    for (const double count : seen) chi += (count - expected) * (count - expected) / expected;
    const auto freedom = static_cast<double>((size - 1) * (size - 1));
    EXPECT_NEAR(chi, freedom, 5 * std::sqrt(2 * freedom) + 2) << size;
  }
}

// Neighbors are separated: the mean distance is that of random pairs, a third of the size.
TEST(Shuffle, SeparatesNeighbors) {
  constexpr std::uint64_t kSize = 100000;
  const Shuffle shuffle(kSize, 2);
  double sum = 0;
  for (std::uint64_t i = 0; i + 1 < kSize; ++i) {
    const auto a = static_cast<double>(shuffle.at(0, i)),
               b = static_cast<double>(shuffle.at(0, i + 1));
    sum += std::abs(a - b);
  }
  EXPECT_NEAR(sum / kSize / kSize, 1.0 / 3, 0.005);
}

TEST(Shuffle, RejectsInvalidSizes) {
  EXPECT_THROW(Shuffle(0, 1), UsageError);
  EXPECT_THROW(Shuffle((std::uint64_t{1} << 62) + 1, 1), UsageError);
}

}  // namespace
}  // namespace tessera::data
