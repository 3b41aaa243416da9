#include "tessera/context_parallel/ring_blocks.h"

#include <algorithm>

namespace tessera::context_parallel {
namespace {

// Block of two chunks. `distance`: position of the first query minus that of the first key.
RingBlock windowed_block(const TokenRange& queries, const TokenRange& keys, std::int64_t distance,
                         std::int64_t window) {
  RingBlock block{queries.local, queries.count, keys.local, keys.count};
  block.causal = block.first = distance == 0;
  // Query i sees the keys from i + hidden on.
  const std::int64_t hidden = distance - window + 1;
  if (hidden <= 0) {
    block.left = -hidden < keys.count - 1 ? -hidden : -1;
  } else {
    block.left = 0;
    block.key += hidden;
    block.keys -= hidden;
    block.queries -= hidden;
  }
  return block;
}

}  // namespace

std::vector<RingBlock> ring_blocks(int rank, int ranks, int owner, std::int64_t tokens,
                                   std::int64_t window) {
  const std::int64_t chunk = tokens / 2;
  if (window == 0) {
    if (owner == rank) return {{0, tokens, 0, tokens, true, -1, true}};
    if (owner < rank) return {{0, tokens, 0, chunk}};
    return {{chunk, chunk, 0, tokens}};
  }
  std::vector<TokenRange> key_ranges = SequencePart{owner, ranks}.ranges(tokens);
  std::reverse(key_ranges.begin(), key_ranges.end());  // of queries, their own keys come first
  std::vector<RingBlock> blocks;
  for (const TokenRange& queries : SequencePart{rank, ranks}.ranges(tokens)) {
    for (const TokenRange& keys : key_ranges) {
      const std::int64_t distance = queries.position - keys.position;
      const bool reaches = distance - window + 1 < keys.count;
      if (distance >= 0 && reaches) {
        blocks.push_back(windowed_block(queries, keys, distance, window));
      }
    }
  }
  return blocks;
}

}  // namespace tessera::context_parallel
