#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "tessera/comm/backend.h"
#include "tessera/comm/liveness.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/shm/control.h"
#include "tessera/comm/shm/memory.h"
#include "tessera/comm/traffic.h"

namespace tessera::comm::shm {

// State of one rank that the transports of a group share.
class GroupState {
 public:
  GroupState(std::shared_ptr<Segment> segment, std::shared_ptr<MemoryTable> memories,
             std::shared_ptr<Liveness> liveness, std::shared_ptr<TrafficMeter> meter, int rank,
             int ranks, std::chrono::nanoseconds spin, const LinkOptions& link)
      : segment_(std::move(segment)),
        control_(segment_->data(), ranks),
        memories_(std::move(memories)),
        liveness_(std::move(liveness)),
        meter_(std::move(meter)),
        rank_(rank),
        ranks_(ranks),
        spin_(spin),
        link_(link) {}

 protected:
  const std::shared_ptr<Segment> segment_;
  const ControlSegment control_;
  const std::shared_ptr<MemoryTable> memories_;
  const std::shared_ptr<Liveness> liveness_;
  const std::shared_ptr<TrafficMeter> meter_;
  const int rank_;
  const int ranks_;
  const std::chrono::nanoseconds spin_;
  const LinkOptions link_;
};

}  // namespace tessera::comm::shm
