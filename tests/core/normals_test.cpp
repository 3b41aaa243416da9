#include "tessera/core/philox.h"

#include <gtest/gtest.h>

#include <vector>

namespace tessera {
namespace {

// All offsets and lengths near the block size, compared with one number at a time.
TEST(Normals, FillEqualsOneByOne) {
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x123456789abcdef0}}) {
    const Philox random(seed, stream_of("w"));
    for (const std::uint64_t first : {0ull, 1ull, 63ull, 127ull, 128ull, (1ull << 33) - 3}) {
      for (const std::uint64_t count : {0u, 1u, 2u, 39u, 40u, 41u, 127u, 128u, 129u, 1000u}) {
        std::vector<float> got(count + 1, 7.0f);
        fill_normals(random, first, count, 0.02f, got.data());
        for (std::uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(got[i], 0.02f * random.normal(first + i)) << seed << " " << first + i;
        }
        ASSERT_EQ(got[count], 7.0f);
      }
    }
  }
}

// Long enough to include numbers near the midpoint of two floats, which are recomputed.
TEST(Normals, FillOfAMillionEqualsOneByOne) {
  const Philox random(11, stream_of("blocks.0.qkv.weight"));
  std::vector<float> got(1 << 20);
  fill_normals(random, 1, got.size(), 1.0f, got.data());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], random.normal(i + 1)) << i;
}

}  // namespace
}  // namespace tessera
