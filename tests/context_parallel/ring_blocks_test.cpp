// The blocks of a ring on a GPU cover every visible pair of a query and a key exactly once.

#include "tessera/context_parallel/ring_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <tuple>

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

// Number of blocks that show a key to a query, by row and positions.
using Seen = std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, int>;

// Each query of a block must see one of its keys, and exactly the first block of a query is marked.
Seen seen_by(const RingShape& shape, std::int64_t rows, const std::string& text) {
  Seen seen;
  const auto mine = positions(shape.rank, shape.ranks, shape.tokens);
  std::vector<bool> begun(mine.size() * static_cast<std::size_t>(rows));
  for (int step = 0; step < shape.ranks; ++step) {
    const int owner = (shape.rank + shape.ranks - step) % shape.ranks;
    const auto theirs = positions(owner, shape.ranks, shape.tokens);
    for (const RingBlock& block : ring_blocks(shape, owner)) {
      EXPECT_GE(block.query, 0) << text;
      EXPECT_GE(block.key, 0) << text;
      EXPECT_LE(block.query + block.queries, shape.tokens) << text;
      EXPECT_LE(block.key + block.keys, shape.tokens) << text;
      EXPECT_TRUE(!block.causal || block.queries == block.keys) << text;
      // Flash attention aligns masks at the last query and the last key.
      EXPECT_GE(block.left < 0 ? 0 : block.left + block.keys - block.queries, 0) << text;
      for (std::int64_t row = 0; row < rows; ++row) {
        if (block.row >= 0 && block.row != row) continue;
        for (std::int64_t i = 0; i < block.queries; ++i) {
          const auto q = static_cast<std::size_t>(block.query + i);
          const std::size_t which =
              q * static_cast<std::size_t>(rows) + static_cast<std::size_t>(row);
          EXPECT_EQ(block.first, !begun[which]) << text << ", query " << q;
          begun[which] = true;
          int keys = 0;
          for (std::int64_t j = 0; j < block.keys; ++j) {
            if (block.causal && j > i) continue;
            if (block.left >= 0 && j < i - block.left) continue;
            ++seen[{row, mine[q], theirs[static_cast<std::size_t>(block.key + j)]}];
            ++keys;
          }
          EXPECT_GT(keys, 0) << text << ", query " << q;
        }
      }
    }
  }
  return seen;
}

// Compares the blocks of every rank with the definition of the mask.
void expect_cover(RingShape shape, std::int64_t rows) {
  const std::int64_t all = shape.tokens * shape.ranks;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) {
    Seen wanted;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (const std::int64_t query : positions(shape.rank, shape.ranks, shape.tokens)) {
        std::int64_t from = shape.window == 0 ? 0 : query - shape.window + 1;
        if (!shape.document_starts.empty()) {
          const auto at = static_cast<std::size_t>(row * all + query);
          from = std::max<std::int64_t>(from, shape.document_starts[at]);
        }
        for (std::int64_t key = std::max<std::int64_t>(0, from); key <= query; ++key) {
          wanted[{row, query, key}] = 1;
        }
      }
    }
    const std::string text =
        str("rank ", shape.rank, " of ", shape.ranks, ", ", shape.tokens, " tokens, window ",
            shape.window, shape.document_starts.empty() ? "" : ", documents");
    EXPECT_EQ(seen_by(shape, rows, text), wanted) << text;
  }
}

TEST(RingBlocks, CoverEveryVisiblePairOnce) {
  for (const int ranks : {2, 3, 4}) {
    for (const std::int64_t chunk : {1, 3, 4}) {
      for (std::int64_t window = 0; window <= 2 * chunk * ranks; ++window) {
        expect_cover({.ranks = ranks, .tokens = 2 * chunk, .window = window}, 1);
      }
    }
  }
}

TEST(RingBlocks, CoverDocuments) {
  std::mt19937 random(3);
  constexpr std::int64_t rows = 2;
  for (int turn = 0; turn < 60; ++turn) {
    RingShape shape{.ranks = 2 + turn % 3, .tokens = 2 * (1 + turn % 5)};
    const std::int64_t all = shape.tokens * shape.ranks;
    const unsigned mean = 1 + random() % static_cast<unsigned>(all);
    for (std::int64_t row = 0; row < rows; ++row) {
      std::int32_t start = 0;
      for (std::int32_t t = 0; t < all; ++t) {
        if (random() % mean == 0) start = t;
        shape.document_starts.push_back(start);
      }
    }
    for (const std::int64_t window : {std::int64_t{0}, 1 + turn % (all - 1)}) {
      shape.window = window;
      expect_cover(shape, rows);
    }
  }
}

TEST(RingBlocks, OneKernelPerStepWithoutAWindow) {
  for (int owner = 0; owner < 4; ++owner) {
    const auto blocks = ring_blocks({.rank = 2, .ranks = 4, .tokens = 8}, owner);
    ASSERT_EQ(blocks.size(), 1u);
    EXPECT_EQ(blocks[0].queries * blocks[0].keys, owner == 2 ? 64 : 32);
  }
}

}  // namespace
}  // namespace tessera::context_parallel
