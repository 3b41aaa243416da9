// The blocks of a ring on a GPU cover every visible pair of a query and a key exactly once.

#include "tessera/context_parallel/ring_blocks.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tessera/core/text.h"

namespace tessera::context_parallel {
namespace {

std::vector<std::int64_t> positions(int rank, int ranks, std::int64_t tokens) {
  std::vector<std::int64_t> all;
  for (const TokenRange& range : SequencePart{rank, ranks}.ranges(tokens)) {
    for (std::int64_t i = 0; i < range.count; ++i) all.push_back(range.position + i);
  }
  return all;
}

// Number of blocks that show a key to a query, by their positions. Each query of a block must see
// one of its keys, and the first block of a query must say so.
using Seen = std::map<std::pair<std::int64_t, std::int64_t>, int>;
Seen seen_by(int rank, int ranks, std::int64_t tokens, std::int64_t window,
             const std::string& text) {
  Seen seen;
  const auto mine = positions(rank, ranks, tokens);
  std::vector<bool> begun(mine.size());
  for (int step = 0; step < ranks; ++step) {
    const int owner = (rank + ranks - step) % ranks;
    const auto theirs = positions(owner, ranks, tokens);
    for (const RingBlock& block : ring_blocks(rank, ranks, owner, tokens, window)) {
      EXPECT_GE(block.query, 0) << text;
      EXPECT_GE(block.key, 0) << text;
      EXPECT_LE(block.query + block.queries, tokens) << text;
      EXPECT_LE(block.key + block.keys, tokens) << text;
      EXPECT_TRUE((!block.causal && block.left < 0) || block.queries == block.keys) << text;
      for (std::int64_t i = 0; i < block.queries; ++i) {
        const auto q = static_cast<std::size_t>(block.query + i);
        EXPECT_EQ(block.first, !begun[q]) << text << ", query " << q;
        begun[q] = true;
        int keys = 0;
        for (std::int64_t j = 0; j < block.keys; ++j) {
          if (block.causal && j > i) continue;
          if (block.left >= 0 && j < i - block.left) continue;
          ++seen[{mine[q], theirs[static_cast<std::size_t>(block.key + j)]}];
          ++keys;
        }
        EXPECT_GT(keys, 0) << text << ", query " << q;
      }
    }
  }
  return seen;
}

TEST(RingBlocks, CoverEveryVisiblePairOnce) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t chunk : {1, 3, 4}) {
      const std::int64_t tokens = 2 * chunk, all = tokens * ranks;
      for (std::int64_t window = 0; window <= all; ++window) {
        for (int rank = 0; rank < ranks; ++rank) {
          Seen wanted;
          for (const std::int64_t query : positions(rank, ranks, tokens)) {
            const std::int64_t from =
                window == 0 ? 0 : std::max<std::int64_t>(0, query - window + 1);
            for (std::int64_t key = from; key <= query; ++key) wanted[{query, key}] = 1;
          }
          const std::string text =
              str("rank ", rank, " of ", ranks, ", chunks of ", chunk, ", window ", window);
          EXPECT_EQ(seen_by(rank, ranks, tokens, window, text), wanted) << text;
        }
      }
    }
  }
}

TEST(RingBlocks, OneKernelPerStepWithoutAWindow) {
  for (int owner = 0; owner < 4; ++owner) {
    const auto blocks = ring_blocks(2, 4, owner, 8, 0);
    ASSERT_EQ(blocks.size(), 1u);
    EXPECT_EQ(blocks[0].queries * blocks[0].keys, owner == 2 ? 64 : 32);
  }
}

}  // namespace
}  // namespace tessera::context_parallel
