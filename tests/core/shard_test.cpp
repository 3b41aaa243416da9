#include "tessera/core/shard.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Shard, ShardsAreAlignedAndCoverTheParameterInOrder) {
  for (std::int64_t numel = 0; numel <= 600; ++numel) {
    for (const std::int64_t ranks : {1, 2, 3, 4, 7, 64}) {
      const std::int64_t size = shard_size(numel, ranks);
      ASSERT_EQ(size % kShardAlign, 0);
      ASSERT_GE(size * ranks, numel);
      ASSERT_LT(size * ranks, numel + (kShardAlign + 1) * ranks);
      std::int64_t end = 0;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const ShardRange own = nth_shard(numel, size, rank);
        ASSERT_EQ(own.begin, end) << numel << " over " << ranks;
        ASSERT_TRUE(own.size == size || own.begin + own.size == numel);
        end = own.begin + own.size;
      }
      ASSERT_EQ(end, numel);
    }
  }
}

}  // namespace
}  // namespace tessera
