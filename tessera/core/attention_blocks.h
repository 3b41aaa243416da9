#pragma once

#include <algorithm>
#include <cstdint>

// Sizes of the blocks in which attention on a CPU computes scores: [Note: attention in blocks] in
// nn/ops_attention.cpp. The planner counts their memory.
namespace tessera {

// Queries of a block.
inline constexpr std::int64_t kScoreRows = 128;
// Number of scores of a group of heads, which has at least one head.
inline constexpr std::int64_t kScoresOfGroup = 1 << 17;

// Returns the number of keys that a block of queries sees at most. `window`: 0 for no limit.
constexpr std::int64_t keys_of_block(std::int64_t keys, std::int64_t window) {
  return window > 0 ? std::min(keys, window + kScoreRows) : keys;
}
// Returns the number of scores of one head in a block that sees so many keys.
constexpr std::int64_t scores_of_block(std::int64_t queries, std::int64_t keys) {
  return std::min(kScoreRows, queries) * keys;
}
// Returns the number of heads of a group, at most `most`.
constexpr std::int64_t heads_of_group(std::int64_t most, std::int64_t scores_of_head,
                                      std::int64_t scores = kScoresOfGroup) {
  return std::clamp<std::int64_t>(scores / std::max<std::int64_t>(1, scores_of_head), 1, most);
}

}  // namespace tessera
