#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tessera/data/uninitialized_vector.h"

namespace tessera::data {

// Tokens of one part of the input, in the format of a shard.
struct TokenPart {
  UninitializedVector<std::byte> tokens;  // u16 or u32
  // If every byte is a token: these bytes plus one per end of a document, instead of `tokens`. They
  // are widened to u16 when written, which halves the memory traffic.
  UninitializedVector<char> text;
  std::uint16_t end = 0;             // token that ends a document; `text` has a placeholder there
  std::vector<std::uint64_t> ends;   // ends of its documents, relative to its start
  std::vector<std::uint8_t> learnt;  // one byte per token; empty without a mask
  std::uint32_t crc = 0;             // of the bytes that the file receives

  // Number of bytes that the file receives.
  std::uint64_t bytes() const { return text.empty() ? tokens.size() : 2 * text.size(); }
  // Copies `count` of these bytes starting at `from`, both even. `first` is the token at which the
  // part starts in `ends`.
  void copy(std::uint64_t from, std::size_t count, std::byte* to, std::uint64_t first = 0) const;
};

// Widens bytes to u16.
void widen_bytes(const char* from, std::size_t count, std::byte* to);
// Returns the checksum of the bytes that the file receives, before the part is claimed.
std::uint32_t checksum_of(const TokenPart& part);

}  // namespace tessera::data
