#include "tessera/data/shuffle.h"

#include <algorithm>
#include <bit>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::data {
namespace {

// Random function of a half and a round key. The multiplications spread every bit to the upper
// ones, and the shifts back to the lower ones.
std::uint64_t scrambled(std::uint64_t half, std::uint32_t key) {
  std::uint64_t x = (half ^ (std::uint64_t{key} << 16)) * 0x9e3779b97f4a7c15u + key;
  x = (x ^ (x >> 32)) * 0xd1342543de82ef95u;
  return x >> 32;
}

// A network of few bits has few permutations, so small sizes use a larger domain.
constexpr int kFewestHalfBits = 4;

}  // namespace

Shuffle::Shuffle(std::uint64_t size, std::uint64_t seed, std::uint64_t stream) : size_(size) {
  if (size == 0 || size > std::uint64_t{1} << 62) {
    throw UsageError(str("a shuffle of ", size, " samples; must be from 1 to 2^62"));
  }
  const PhiloxBlock words = Philox(seed, stream_of("data.shuffle")).block(stream);
  key_ = {words[0], words[1]};
  half_bits_ = std::max(kFewestHalfBits, static_cast<int>((std::bit_width(size - 1) + 1) / 2));
}

std::uint64_t Shuffle::permute(const Keys& keys, std::uint64_t number) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = number >> half_bits_, right = number & mask;
  for (const std::uint32_t key : keys) {
    const std::uint64_t next = left ^ (scrambled(right, key) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t Shuffle::at(std::uint64_t epoch, std::uint64_t position) const {
  if (size_ == 1) return 0;
  Keys keys;
  for (std::uint32_t i = 0; i < keys.size(); i += 4) {
    const PhiloxBlock words = philox4x32(
        {i, 0, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)}, key_);
    std::copy(words.begin(), words.end(), keys.begin() + i);
  }
  do {
    position = permute(keys, position);
  } while (position >= size_);
  return position;
}

}  // namespace tessera::data
