#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tessera {

// Consecutive tokens of a part of a sequence that are also consecutive in the whole sequence.
struct TokenRange {
  // Index of the first token in the part.
  std::int64_t local = 0;
  // Index of the first token in the whole sequence.
  std::int64_t position = 0;
  // Number of tokens.
  std::int64_t count = 0;

  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// [Note: zig-zag] Context parallelism cuts a sequence into 2·parts chunks of equal length. Part p
// holds chunk p and then chunk 2·parts - 1 - p. In causal attention a chunk sees itself and all
// chunks before it, so late chunks have more work than early ones; a pair of an early and a late
// one has the same amount in every part.
struct SequencePart {
  int index = 0;
  int parts = 1;

  // Returns the number of chunks of a part.
  int chunks() const { return parts == 1 ? 1 : 2; }
  // Returns the number, in the whole sequence, of chunk i of this part.
  int chunk(int i) const { return i == 0 ? index : 2 * parts - 1 - index; }
  // Returns the ranges of tokens [begin, begin + count) of this part, which has `tokens` tokens.
  std::vector<TokenRange> ranges(std::int64_t begin, std::int64_t count,
                                 std::int64_t tokens) const {
    const std::int64_t length = tokens / chunks();
    std::vector<TokenRange> all;
    for (int i = 0; i < chunks(); ++i) {
      const std::int64_t from = std::max(begin, i * length);
      const std::int64_t to = std::min(begin + count, (i + 1) * length);
      if (from < to) all.push_back({from, chunk(i) * length + from - i * length, to - from});
    }
    return all;
  }
  // Returns the ranges of all tokens of this part.
  std::vector<TokenRange> ranges(std::int64_t tokens) const { return ranges(0, tokens, tokens); }

  friend bool operator==(const SequencePart&, const SequencePart&) = default;
};

// Returns the number of tokens of a sequence after padding, so that every part has chunks of equal
// length and `shards` ranks can shard each part (sequence parallelism).
constexpr std::int64_t padded_tokens(std::int64_t tokens, int parts, int shards) {
  const std::int64_t unit = std::int64_t{parts} * (parts == 1 ? 1 : 2) * shards;
  return (tokens + unit - 1) / unit * unit;
}

}  // namespace tessera
