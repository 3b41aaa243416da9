#include "tessera/core/index.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace tessera {
namespace {

TEST(Index, NthReturnsAReferenceToTheElement) {
  std::vector<int> values = {1, 2, 3};
  nth(values, std::int64_t{1}) = 7;
  EXPECT_EQ(values[1], 7);
  const std::vector<int>& fixed = values;
  static_assert(std::is_same_v<decltype(nth(fixed, 0)), const int&>);
  const double plain[] = {0.5, 1.5};
  EXPECT_EQ(nth(plain, 1), 1.5);
  static constexpr std::array<int, 2> kPair = {4, 5};
  static_assert(nth(kPair, 1) == 5 && as_size(2) == kPair.size());
}

TEST(Index, DebugBuildsAssertBounds) {
#ifdef NDEBUG
  GTEST_SKIP() << "only debug builds check bounds";
#else
  const std::vector<int> values = {1, 2, 3};
  EXPECT_DEATH(nth(values, 3), "");
  EXPECT_DEATH(nth(values, -1), "");
  EXPECT_DEATH(as_size(-1), "");
#endif
}

}  // namespace
}  // namespace tessera
