#include "tessera/core/median.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Median, ReturnsTheMiddleValue) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({1, 9, 5}), 5);
  EXPECT_EQ(median({1, 9, 5, 7}), 6);
}

}  // namespace
}  // namespace tessera
