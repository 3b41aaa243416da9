#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/nccl/launch_turn.h"

namespace tessera::comm::nccl {

// In which order a process puts the calls of all its communicators on its GPU.
//
// [Note: launch order] A kernel of NCCL stays on the GPU until the kernels of the other ranks have
// come. If the GPU of rank A starts those of two communicators in one order and that of rank B in
// the other, and either has no room for both at once (or runs two streams through one queue of the
// hardware), each waits for what is behind the other. So launches of a process have one order, in
// which all its communicators (dp, tp, pp, the world) take part, and it is the order of its calls:
//   - A call that its group has made before is launched by the thread that makes it, before the
//     call returns. Autograd runs hooks on one thread while the caller of backward() waits, so
//     these calls have the order of the program.
//   - A collective that is made for the first time must be agreed on first ([Note: agreement]).
//     It waits in a queue, all later collectives of the process wait behind it, and a thread of its
//     own launches them in that order. Sends and receives do not wait there: they are independent
//     of collectives, and two ranks that send before they receive must not block each other.
// Why that cannot deadlock: let the program be one that ends when every collective blocks its
// caller, as a program over the blocking calls of MPI must. Then all collectives of all ranks have
// one order that agrees with the program order of each rank: the order in which such a run ends
// them. Take the first in it that has not ended. On each of its ranks all launches before it have
// ended, so it is the oldest on each of their GPUs and starts, whatever the hardware does with the
// rest. Hence it ends. A send has a communicator and a stream of its own and needs one block of the
// GPU; that the collectives behind it find room beside it is what NCCL_LAUNCH_ORDER_IMPLICIT
// sees to (NCCL 2.26 and later; init() sets it): each kernel starts only when the one launched
// before it is on the GPU whole.
class LaunchOrder {
 public:
  LaunchOrder();
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  enum class How {
    now,       // by the caller, unless collectives wait: then behind them
    on_thread  // always behind what waits, on the thread
  };
  // The task does not throw.
  void put(std::function<void()> task, How how);

  // Waits until nothing is queued, as long as `go_on` says so (asked now and then).
  bool wait_until_empty(const std::function<bool()>& go_on);

  // Whoever launches holds it, collectives and messages alike ([Note: one launcher]).
  LaunchTurn turn;

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm::nccl
