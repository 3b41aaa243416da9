// Kernel calls of one step of a ring on a GPU. Internal.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/sequence_part.h"

namespace tessera::context_parallel {

// Queries of a rank, and keys of the rank that owns them, for one call of a kernel: all queries see
// all keys, or there are as many keys as queries, with a mask.
struct RingBlock {
  std::int64_t query = 0, queries = 0;  // first token of the rank, and number of tokens
  std::int64_t key = 0, keys = 0;       // of the owner
  bool causal = false;                  // query i sees no key after i
  std::int64_t left = -1;               // query i sees no key before i - left; -1: no limit
  // No earlier block has these queries. (Later ones add to the result.)
  bool first = false;

  friend bool operator==(const RingBlock&, const RingBlock&) = default;
};

// Returns the blocks of a rank's queries with the keys of `owner`, each rank with `tokens` tokens
// of every sequence in two chunks: [Note: zig-zag]. `window` is that of attention; 0: no limit.
// Blocks in which no query sees a key are left out. A step starts with the rank's own keys.
//
// Chunks are in the order of their positions, so the mask of a rank's own tokens is causal. Of
// another rank's keys, those of the first chunk are before both or only the second chunk of
// queries, and those of the second chunk before the second chunk of queries or after all. So
// without a window there is one block: all queries with the first chunk of keys, or the second
// chunk of queries with all keys. With a window each pair of chunks is a block of its own, without
// the queries and keys at its ends that have no partner.
std::vector<RingBlock> ring_blocks(int rank, int ranks, int owner, std::int64_t tokens,
                                   std::int64_t window);

}  // namespace tessera::context_parallel
