#include "tessera/checkpoint/checksum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tessera/core/philox.h"

namespace tessera::checkpoint {
namespace {

// Reference: the definition, bit by bit.
std::uint32_t slow_crc(const std::string& text) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::string noise(std::size_t size, std::uint64_t seed) {
  const Philox random(seed, 1);
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(random.bits(i) >> 24);
  return text;
}

TEST(Checksum, MatchesKnownValues) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(""), 0u);
}

TEST(Checksum, AllVersionsAgreeForEverySizeAndOffset) {
  const std::string text = noise(300, 7);
  for (std::size_t begin = 0; begin < 9; ++begin) {
    for (std::size_t size = 0; begin + size <= text.size(); ++size) {
      const std::string part = text.substr(begin, size);
      const std::uint32_t wanted = slow_crc(part);
      ASSERT_EQ(crc32c(text.data() + begin, size), wanted);
      ASSERT_EQ(crc32c_portable(text.data() + begin, size), wanted);
      const std::size_t half = size / 3;
      const std::uint32_t first = crc32c(part.data(), half);
      ASSERT_EQ(crc32c(part.data() + half, size - half, first), wanted);
      ASSERT_EQ(crc32c_portable(part.data() + half, size - half, first), wanted);
    }
  }
}

// Long texts are processed in lanes of 2 KiB, four at a time.
TEST(Checksum, AllVersionsAgreeForLongTexts) {
  const std::string text = noise(20'000, 9);
  for (std::size_t size = 8'100; size < text.size(); size += 97) {
    const std::size_t begin = size % 11, whole = size - begin;
    const std::uint32_t wanted = crc32c_portable(text.data() + begin, whole, 5);
    ASSERT_EQ(crc32c(text.data() + begin, whole, 5), wanted) << size;
  }
  EXPECT_EQ(crc32c(text), slow_crc(text));
}

TEST(Checksum, DetectsEveryFlippedBitAndPair) {
  std::string text = noise(600, 8);
  const std::uint32_t right = crc32c(text);
  for (std::size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(crc32c(text), right) << bit;
    const std::size_t other = (bit + 1 + bit % 37) % (8 * text.size());
    text[other / 8] = static_cast<char>(text[other / 8] ^ (1 << other % 8));
    ASSERT_NE(crc32c(text), right) << bit << " and " << other;
    text[other / 8] = static_cast<char>(text[other / 8] ^ (1 << other % 8));
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
  ASSERT_EQ(crc32c(text), right);
}

TEST(Checksum, BlocksAtOnceEqualBlocksOneByOne) {
  const auto block = static_cast<std::size_t>(kBlockBytes);
  const std::string text = noise(9 * block + 5, 9);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, block, 4 * block, 4 * block + 1,
                                  5 * block - 1, 9 * block + 5}) {
    std::vector<std::uint32_t> got = {7}, wanted = {7};  // appended to
    crc32c_blocks(reinterpret_cast<const std::byte*>(text.data()), static_cast<std::int64_t>(bytes),
                  got);
    for (std::size_t at = 0; at < bytes; at += block) {
      wanted.push_back(crc32c_portable(text.data() + at, std::min(block, bytes - at)));
    }
    EXPECT_EQ(got, wanted) << bytes;
  }
}

TEST(Checksum, ConvertsToHexadecimalAndBack) {
  const std::vector<std::uint32_t> values = {0, 1, 0xffffffffu, 0x12345678u, 0x9abcdef0u};
  std::vector<std::uint32_t> back;
  EXPECT_EQ(to_hex(values), "0000000000000001ffffffff123456789abcdef0");
  ASSERT_TRUE(from_hex(to_hex(values), back));
  EXPECT_EQ(back, values);
  ASSERT_TRUE(from_hex("", back));
  EXPECT_TRUE(back.empty());
  for (const char* bad : {"1", "1234567", "123456789", "1234567G", "1234567F", "1234567 "}) {
    EXPECT_FALSE(from_hex(bad, back)) << bad;
  }
}

}  // namespace
}  // namespace tessera::checkpoint
