#include "tessera/core/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

namespace tessera {
namespace {

// Running jobs compare these values across versions, so they must not change.
TEST(Hash, KeepsItsKnownValues) {
  EXPECT_EQ(hash_text(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(hash_text("a"), 0xaf63dc4c8601ec8cull);       // published FNV-1a values
  EXPECT_EQ(hash_text("foobar"), 0x85944171f73967e8ull);  // published FNV-1a values
  EXPECT_EQ(hash_text("bar", hash_text("foo")), hash_text("foobar"));
  EXPECT_EQ(mix(0, 0), 0u);
  EXPECT_EQ(mix(0, 1), 0x9e3779b97f4a7c15ull ^ (0x9e3779b97f4a7c15ull >> 29));
}

TEST(Hash, DependsOnEveryByteAndTheLength) {
  for (std::size_t length = 0; length <= 40; ++length) {
    std::vector<unsigned char> bytes(length, 7);
    std::set<std::uint64_t> seen = {mix(5, bytes.data(), length)};
    for (std::size_t i = 0; i < length; ++i) {
      bytes[i] ^= 1;
      EXPECT_TRUE(seen.insert(mix(5, bytes.data(), length)).second) << length << " " << i;
      bytes[i] ^= 1;
    }
    bytes.push_back(0);
    EXPECT_TRUE(seen.insert(mix(5, bytes.data(), length + 1)).second) << length;
  }
}

TEST(Hash, MixesWordsAndBytesAlike) {
  const std::uint64_t words[] = {3, ~0ull, 1ull << 63};
  std::uint64_t wanted = 9;
  for (const std::uint64_t word : words) wanted = mix(wanted, word);
  EXPECT_EQ(mix(9, words, sizeof words), mix(wanted, 0));
}

}  // namespace
}  // namespace tessera
