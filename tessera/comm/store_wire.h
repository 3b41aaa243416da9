#pragma once

// What client and server of our own store say to each other after the handshake.

#include <cstdint>

namespace tessera::comm {

enum class StoreOp : std::uint32_t { set = 1, get = 2, count = 3 };

struct StoreRequest {
  StoreOp op;
  std::uint32_t key_bytes;    // 1 to kLongestKey
  std::uint32_t value_bytes;  // up to kLongestValue, and 0 unless it sets
};
// Unless it is good the text says why not, and the connection ends. The text of a rank that failed
// is its number, a blank and how it failed.
enum class StoreVerdict : std::uint32_t { refused = 0, good = 1, rank_failed = 2 };
struct StoreAnswer {
  StoreVerdict verdict;
  std::uint32_t bytes;  // of the value, the count (8) or the text
};

}  // namespace tessera::comm
