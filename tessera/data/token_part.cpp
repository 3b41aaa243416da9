#include "tessera/data/token_part.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/checkpoint/checksum.h"

namespace tessera::data {

// The buffers do not overlap; __restrict lets the compiler vectorize.
void widen_bytes(const char* __restrict from, std::size_t count, std::byte* __restrict to) {
  auto* const out = reinterpret_cast<unsigned char*>(to);
  for (std::size_t i = 0; i < count; ++i) {
    out[2 * i] = static_cast<unsigned char>(from[i]);
    out[2 * i + 1] = 0;
  }
}

void TokenPart::copy(std::uint64_t from, std::size_t count, std::byte* to,
                     std::uint64_t first) const {
  if (count == 0) return;
  if (text.empty()) {
    std::memcpy(to, tokens.data() + from, count);
    return;
  }
  widen_bytes(text.data() + from / 2, count / 2, to);
  const std::uint64_t begin = first + from / 2, behind = begin + count / 2;
  for (auto at = std::upper_bound(ends.begin(), ends.end(), begin);
       at != ends.end() && *at <= behind; ++at) {
    std::memcpy(to + 2 * (*at - 1 - begin), &end, sizeof end);
  }
}

std::uint32_t checksum_of(const TokenPart& part) {
  if (part.text.empty()) return checkpoint::crc32c(part.tokens.data(), part.tokens.size());
  std::array<std::byte, 32 << 10> block;  // fits in the L1 cache
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < part.bytes(); at += block.size()) {
    const std::size_t count = std::min<std::uint64_t>(block.size(), part.bytes() - at);
    part.copy(at, count, block.data());
    crc = checkpoint::crc32c(block.data(), count, crc);
  }
  return crc;
}

}  // namespace tessera::data
