#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"

namespace tessera::comm {

// Symmetric memory whose parts are adjacent in one segment.
class SegmentMemory : public SymmetricMemory {
 public:
  SegmentMemory(std::shared_ptr<Segment> segment, std::size_t stride)
      : segment_(std::move(segment)), stride_(stride) {}

  // Returns the distance between parts: a positive number of whole cache lines.
  static std::size_t stride(std::size_t bytes) {
    return (std::max<std::size_t>(bytes, 1) + 63) / 64 * 64;
  }

  void* part(int rank) const final {
    return segment_->data() + static_cast<std::size_t>(rank) * stride_;
  }
  std::size_t part_bytes() const final { return stride_; }

 private:
  const std::shared_ptr<Segment> segment_;
  const std::size_t stride_;
};

}  // namespace tessera::comm
