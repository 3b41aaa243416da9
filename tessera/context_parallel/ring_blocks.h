// Kernel calls of one step of a ring on a GPU. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/sequence_part.h"

namespace tessera::context_parallel {

// Queries and keys for one call of an attention kernel. The keys may be those of another rank,
// their owner.
struct RingBlock {
  std::int64_t query = 0, queries = 0;  // index of the first one on this rank, and number
  std::int64_t key = 0, keys = 0;       // the same on their owner
  bool causal = false;     // query i sees no key after i, and there are as many keys as queries
  std::int64_t left = -1;  // query i sees no key before i - left; -1: no limit
  bool first = false;      // no earlier block has these queries; later blocks add to its result
  std::int64_t row = -1;   // sequence of the batch; -1: all

  friend bool operator==(const RingBlock&, const RingBlock&) = default;
};

// Attention of the ranks of a ring, each with `tokens` tokens of every sequence in two chunks:
// [Note: zig-zag].
struct RingShape {
  int rank = 0, ranks = 1;
  std::int64_t tokens = 0;
  std::int64_t window = 0;                         // of attention; 0: no limit
  std::vector<std::int32_t> document_starts = {};  // of whole rows, [B, ranks · tokens]; or empty
};

// Returns the blocks of the rank's queries with the keys of `owner`. Each query of a block sees at
// least one of its keys. A step with the rank's own keys comes first.
//
// Chunks are in the order of their positions, so the mask of a rank's own tokens is causal. Of
// another rank's keys, those of the first chunk are before both or only the second chunk of
// queries, and those of the second chunk before the second chunk of queries or after all. So
// without a window and documents there is one block: all queries with the first chunk of keys, or
// the second chunk of queries with all keys.
//
// With a window each pair of chunks is a block of its own, without the queries and keys at its ends
// that have no partner. With documents each pair has blocks for each row: one for every document of
// a chunk and, of two chunks, one for the document that extends from one to the other.
std::vector<RingBlock> ring_blocks(const RingShape& shape, int owner);

}  // namespace tessera::context_parallel
