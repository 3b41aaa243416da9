#include "tessera/context_parallel/ring_blocks.h"

#include <algorithm>
#include <utility>

namespace tessera::context_parallel {
namespace {

// Blocks of one step.
class RingBlocks {
 public:
  explicit RingBlocks(const RingShape& shape) : shape_(shape) {}

  void add_pair(const TokenRange& queries, const TokenRange& keys) {
    if (keys.position > queries.position) return;
    const auto whole = static_cast<std::size_t>(shape_.tokens * shape_.ranks);
    if (shape_.document_starts.empty()) return add(queries, keys, -1);
    for (std::size_t first = 0; first < shape_.document_starts.size(); first += whole) {
      add_documents(queries, keys, static_cast<std::int64_t>(first / whole),
                    shape_.document_starts.data() + first);
    }
  }

  std::vector<RingBlock> take() { return std::move(blocks_); }

 private:
  // `starts`: of the documents of a row, by position.
  void add_documents(const TokenRange& queries, const TokenRange& keys, std::int64_t row,
                     const std::int32_t* starts) {
    const std::int64_t end = queries.position + queries.count;
    const bool own = queries.position == keys.position;
    for (std::int64_t position = queries.position; position < end;) {
      const std::int32_t start = starts[position];
      std::int64_t next = position + 1;
      while (next < end && starts[next] == start) ++next;
      const TokenRange document{queries.local + position - queries.position, position,
                                next - position};
      if (own) {
        add(document, {keys.local + document.local - queries.local, position, document.count}, row);
      } else {
        const std::int64_t skipped = std::max<std::int64_t>(0, start - keys.position);
        add(document, {keys.local + skipped, keys.position + skipped, keys.count - skipped}, row);
        return;  // the other documents of the queries begin after the keys
      }
      position = next;
    }
  }

  // Adds a block of queries and keys without what cannot be seen: consecutive keys that all begin
  // where the queries do, or that are all before them.
  void add(const TokenRange& queries, const TokenRange& keys, std::int64_t row) {
    const std::int64_t distance = queries.position - keys.position;
    RingBlock block{queries.local, queries.count, keys.local, keys.count};
    block.causal = block.first = distance == 0;
    block.row = row;
    if (shape_.window > 0) {
      // Query i sees the keys from i + hidden on.
      std::int64_t hidden = distance - shape_.window + 1;
      if (hidden > 0) {
        block.key += hidden;
        block.keys -= hidden;
        hidden = 0;
      }
      block.queries = std::min(block.queries, block.keys - hidden);
      if (block.queries - 1 + hidden > 0) block.left = -hidden;
    }
    if (block.queries > 0 && block.keys > 0) blocks_.push_back(block);
  }

  const RingShape& shape_;
  std::vector<RingBlock> blocks_;
};

}  // namespace

std::vector<RingBlock> ring_blocks(const RingShape& shape, int owner) {
  const std::int64_t tokens = shape.tokens, chunk = tokens / 2;
  if (shape.window == 0 && shape.document_starts.empty()) {
    if (owner == shape.rank) return {{0, tokens, 0, tokens, true, -1, true}};
    if (owner < shape.rank) return {{0, tokens, 0, chunk}};
    return {{chunk, chunk, 0, tokens}};
  }
  std::vector<TokenRange> key_ranges = SequencePart{owner, shape.ranks}.ranges(tokens);
  std::reverse(key_ranges.begin(), key_ranges.end());  // of queries, their own keys come first
  RingBlocks blocks(shape);
  for (const TokenRange& queries : SequencePart{shape.rank, shape.ranks}.ranges(tokens)) {
    for (const TokenRange& keys : key_ranges) blocks.add_pair(queries, keys);
  }
  return blocks.take();
}

}  // namespace tessera::context_parallel
