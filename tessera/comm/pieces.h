#pragma once

#include <algorithm>
#include <cstddef>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Division of a large buffer of shards ([Note: shards]) into the pieces of a pipeline: piece p has
// `quantum` elements of every shard. All numbers are in elements.
class Pieces {
 public:
  Pieces(std::size_t elements, int shards, std::size_t most)
      : stride(shard_stride(elements, shards)),
        quantum(std::max<std::size_t>(1, std::min(most, stride))),
        count((stride + quantum - 1) / quantum),
        elements_(elements),
        shards_(shards) {}

  const std::size_t stride;   // distance between shards
  const std::size_t quantum;  // elements of one shard in one piece
  const std::size_t count;    // number of pieces

  // Returns the number of elements of shard s in piece p; the last shards are shorter or empty.
  std::size_t length(int s, std::size_t p) const noexcept {
    const std::size_t shard = shard_of(elements_, shards_, s).size;
    const std::size_t begin = p * quantum;
    return shard > begin ? std::min(quantum, shard - begin) : 0;
  }
  // Returns the offset in the buffer of shard s in piece p.
  std::size_t offset(int s, std::size_t p) const noexcept {
    return static_cast<std::size_t>(s) * stride + p * quantum;
  }
  // Returns the length of piece p in the longest shard.
  std::size_t width(std::size_t p) const noexcept {
    return std::min(quantum, stride - p * quantum);
  }

 private:
  const std::size_t elements_;
  const int shards_;
};

}  // namespace tessera::comm
