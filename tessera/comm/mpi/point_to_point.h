#pragma once

#include <memory>

#include "tessera/comm/backend.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/traffic.h"
#include "tessera/comm/watch.h"

namespace tessera::comm::mpi {

// Sends and receives of one group. Transfers between one pair of ranks keep their order in each
// direction; everything else goes on side by side, so two ranks that send to each other before they
// receive do not block. A letter goes first, with the data if there is little; the receiver
// compares it with its own call before it lets anything into its buffer.
class PointToPoint {
 public:
  PointToPoint(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watch,
               std::shared_ptr<TrafficMeter> meter, int rank, int ranks, int first_tag);
  ~PointToPoint();

  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  Work submit(Collective call, Attachments attachments);

 private:
  struct Core;
  struct Item;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm::mpi
