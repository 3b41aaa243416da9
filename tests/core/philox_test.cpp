#include "tessera/core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace tessera {
namespace {

// The known-answer vectors of Random123 (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, MatchesTheKnownAnswers) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, SeedStreamAndCounterUseTheirWords) {
  const Philox random(0x299f31d0a4093822, 0x0370734413198a2e);
  EXPECT_EQ(random.block(0x85a308d3243f6a88),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  EXPECT_EQ(random.bits(4 * 0x5a308d3243f6a88 + 2), random.block(0x5a308d3243f6a88)[2]);
}

TEST(Philox, NamesHaveDistinctStreams) {
  EXPECT_EQ(stream_of(""), 0xcbf29ce484222325u);
  EXPECT_EQ(stream_of("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(stream_of("foobar"), 0x85944171f73967e8u);
  std::set<std::uint64_t> streams;
  for (int i = 0; i < 1000; ++i) streams.insert(stream_of("h." + std::to_string(i) + ".weight"));
  EXPECT_EQ(streams.size(), 1000u);
}

TEST(Philox, UniformAndNormalHaveTheExpectedMoments) {
  const Philox random(7, stream_of("moments"));
  constexpr int n = 200'000;
  double uniform = 0, normal = 0, square = 0, product = 0;
  for (int i = 0; i < n; ++i) {
    const float u = random.uniform(i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    const double z = random.normal(i);
    uniform += u;
    normal += z;
    square += z * z;
    product += z * random.normal(i ^ 1);
  }
  EXPECT_NEAR(uniform / n, 0.5, 0.004);
  EXPECT_NEAR(normal / n, 0.0, 0.012);
  EXPECT_NEAR(square / n, 1.0, 0.016);
  EXPECT_NEAR(product / n, 0.0, 0.012);
}

}  // namespace
}  // namespace tessera
