#include "tessera/core/sequence_part.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera {
namespace {

TEST(SequencePart, PartsHoldEveryPositionOnce) {
  for (int parts = 1; parts <= 9; ++parts) {
    for (const std::int64_t chunk : {1, 3, 8}) {
      const std::int64_t tokens = chunk * (parts == 1 ? 1 : 2);
      std::set<std::int64_t> seen;
      for (int index = 0; index < parts; ++index) {
        std::int64_t local = 0;
        for (const TokenRange& range : SequencePart{index, parts}.ranges(tokens)) {
          EXPECT_EQ(range.local, local);
          local += range.count;
          for (std::int64_t i = 0; i < range.count; ++i) {
            EXPECT_TRUE(seen.insert(range.position + i).second);
          }
        }
        EXPECT_EQ(local, tokens);
      }
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), parts * tokens);
      EXPECT_EQ(*seen.rbegin(), parts * tokens - 1);
    }
  }
}

TEST(SequencePart, RangesOfAStretchAreTheMiddleOfThoseOfThePart) {
  const SequencePart part{1, 3};  // chunks 1 and 4 of 6
  EXPECT_EQ(part.ranges(8), (std::vector<TokenRange>{{0, 4, 4}, {4, 16, 4}}));
  EXPECT_EQ(part.ranges(2, 4, 8), (std::vector<TokenRange>{{2, 6, 2}, {4, 16, 2}}));
  EXPECT_EQ(part.ranges(5, 3, 8), (std::vector<TokenRange>{{5, 17, 3}}));
  EXPECT_EQ(SequencePart().ranges(5), (std::vector<TokenRange>{{0, 0, 5}}));
}

// In causal attention a chunk has work for every chunk before it, and half for itself.
TEST(SequencePart, EveryPartHasTheSameCausalWork) {
  for (int parts = 2; parts <= 16; ++parts) {
    std::set<int> work;  // twice the number of chunk products
    for (int index = 0; index < parts; ++index) {
      const SequencePart part{index, parts};
      work.insert(2 * part.chunk(0) + 1 + 2 * part.chunk(1) + 1);
    }
    EXPECT_EQ(work, (std::set<int>{4 * parts}));
  }
}

TEST(SequencePart, PaddedRowsGiveEqualChunksAndShards) {
  for (std::int64_t tokens = 1; tokens < 70; ++tokens) {
    for (int parts = 1; parts <= 5; ++parts) {
      for (int shards = 1; shards <= 4; ++shards) {
        const std::int64_t padded = padded_tokens(tokens, parts, shards);
        const std::int64_t unit = std::int64_t{parts} * shards * SequencePart{0, parts}.chunks();
        EXPECT_GE(padded, tokens);
        EXPECT_LT(padded, tokens + unit);
        EXPECT_EQ(padded % unit, 0);
      }
    }
  }
}

}  // namespace
}  // namespace tessera
