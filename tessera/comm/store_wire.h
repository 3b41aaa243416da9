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
struct StoreAnswer {
  std::uint32_t good;   // otherwise the text says why not, and the connection ends
  std::uint32_t bytes;  // of the value, the count (8) or the text
};

}  // namespace tessera::comm
