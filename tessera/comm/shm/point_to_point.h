#pragma once

#include <chrono>
#include <memory>

#include "tessera/comm/backend.h"
#include "tessera/comm/peers.h"
#include "tessera/comm/shm/control.h"
#include "tessera/comm/shm/memory.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/watch.h"

namespace tessera::comm::shm {

// Sends and receives among the ranks of one host. Transfers between one pair of ranks keep their
// order in each direction; everything else goes on side by side, so two ranks that send to each
// other before they receive do not block. A message in symmetric memory is read by the receiver
// where it lies; another one travels in packets.
//
// As in Queue ([Note: who runs it]), whoever waits does the work, and a thread of its own does it
// when nobody waits.
class PointToPoint {
 public:
  PointToPoint(std::shared_ptr<Segment> segment, std::shared_ptr<MemoryTable> memories,
               std::shared_ptr<Watch> watch, std::shared_ptr<TrafficMeter> meter, int rank,
               int ranks, std::chrono::nanoseconds spin);
  ~PointToPoint();

  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  Work submit(Collective call, Attachments attachments);

 private:
  struct Core;
  struct Item;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm::shm
