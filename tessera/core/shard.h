#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

// [Note: shards of a parameter] Each parameter alone is cut into one shard per rank, of equal size
// and a multiple of kShardAlign elements; rank r owns shard r. So what a rank owns does not depend
// on how parameters are packed, and the planner counts what the engine allocates, sends and saves,
// padding included.
inline constexpr std::int64_t kShardAlign = 16;

constexpr std::int64_t shard_size(std::int64_t numel, std::int64_t ranks) {
  const std::int64_t even = (numel + ranks - 1) / ranks;
  return (even + kShardAlign - 1) / kShardAlign * kShardAlign;
}

// Elements of a parameter, without padding.
struct ShardRange {
  std::int64_t begin = 0, size = 0;

  friend constexpr bool operator==(const ShardRange&, const ShardRange&) = default;
};
// Those in shard `rank`, where each shard has `shard` elements.
constexpr ShardRange nth_shard(std::int64_t numel, std::int64_t shard, std::int64_t rank) {
  const std::int64_t begin = std::min(numel, shard * rank);
  return {begin, std::min(shard, numel - begin)};
}
constexpr ShardRange shard_of(std::int64_t numel, std::int64_t ranks, std::int64_t rank) {
  return nth_shard(numel, shard_size(numel, ranks), rank);
}

}  // namespace tessera
