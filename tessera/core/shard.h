#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera {

// [Note: shards of a parameter] Each parameter is cut separately into one shard per rank, of equal
// size and a multiple of kShardAlign elements. Rank r owns shard r. So the elements of a rank do
// not depend on how parameters are packed, and the planner can compute what the engine allocates,
// sends and saves, including padding.
inline constexpr std::int64_t kShardAlign = 16;

constexpr std::int64_t shard_size(std::int64_t numel, std::int64_t ranks) {
  const std::int64_t even = (numel + ranks - 1) / ranks;
  return (even + kShardAlign - 1) / kShardAlign * kShardAlign;
}

// Range of the elements that one rank owns, without padding.
struct ShardRange {
  std::int64_t begin = 0, size = 0;

  friend constexpr bool operator==(const ShardRange&, const ShardRange&) = default;
};
// Returns the range of shard `rank` of `numel` elements if each shard has `shard` elements: for a
// parameter shard_size(), for the buffer of a collective comm::shard_stride(). The last shards may
// be shorter or empty.
constexpr ShardRange nth_shard(std::int64_t numel, std::int64_t shard, std::int64_t rank) {
  const std::int64_t begin = std::min(numel, shard * rank);
  return {begin, std::min(shard, numel - begin)};
}

// [Note: bucket size] Default size of a gradient bucket: one sixteenth of a rank's gradients. The
// two or three buckets that stages 2 and 3 hold in addition to their shard are then small compared
// to the memory they save, and there are enough buckets to overlap. At least 256 KiB, below which
// the latency of a call exceeds its transfer time. At most 25 MB, above which no link gets faster.
constexpr std::int64_t default_bucket_bytes(std::int64_t gradient_bytes) {
  return std::clamp<std::int64_t>(gradient_bytes / 16, 256 << 10, 25'000'000);
}

}  // namespace tessera
