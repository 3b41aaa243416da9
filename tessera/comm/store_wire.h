#pragma once

// Messages between client and server of Tessera's own store after the handshake.

#include <cstdint>

namespace tessera::comm {

enum class StoreOp : std::uint32_t { set = 1, get = 2, count = 3 };

struct StoreRequest {
  StoreOp op;
  std::uint32_t key_bytes;    // 1 to kLongestKey
  std::uint32_t value_bytes;  // at most kLongestValue; 0 unless op is set
};
// Status of an answer. Unless it is `good`, the answer is an error text and the server closes the
// connection. For `rank_failed` the text is the rank, a space and a description of the failure.
enum class StoreVerdict : std::uint32_t { refused = 0, good = 1, rank_failed = 2 };
struct StoreAnswer {
  StoreVerdict verdict;
  std::uint32_t bytes;  // size of the value, the count (8 bytes) or the text
};

}  // namespace tessera::comm
