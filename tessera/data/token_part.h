#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/data/uninitialised.h"

namespace tessera::data {

// The tokens of one part of the input, as they will lie in a shard.
struct TokenPart {
  Uninitialised<std::byte> tokens;  // u16 or u32
  // Where every byte is a token: these bytes, with one more for the end of a document, instead of
  // `tokens`. They are made u16 on their way to the file, so that half as much goes through memory.
  Uninitialised<char> text;
  std::uint16_t end = 0;             // what stands in `text` where a document ends
  std::vector<std::uint64_t> ends;   // of the documents that end in it, counted from its beginning
  std::vector<std::uint8_t> learnt;  // a byte a token; empty where there is no mask
  std::uint32_t crc = 0;             // of what bytes() counts

  // That the file gets.
  std::uint64_t bytes() const { return text.empty() ? tokens.size() : 2 * text.size(); }
  // `count` of them from `from` on, both even. `first` is what `ends` count the part's beginning.
  void copy(std::uint64_t from, std::size_t count, std::byte* to, std::uint64_t first = 0) const;
};

// Bytes to u16.
void widen_bytes(const char* from, std::size_t count, std::byte* to);
// The checksum of what a part gives the file, before it is claimed.
std::uint32_t checksum_of(const TokenPart& part);

}  // namespace tessera::data
