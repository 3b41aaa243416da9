#pragma once

#include <functional>
#include <memory>

#include "tessera/comm/nccl/launch_turn.h"

namespace tessera::comm::nccl {

// Order in which a process launches the calls of all its communicators on its GPU.
//
// [Note: launch order] An NCCL kernel stays on the GPU until the kernels of the other ranks have
// started. If rank A's GPU starts the kernels of two communicators in one order and rank B's GPU in
// the other, and either cannot run both at once (or maps both streams to one hardware queue), the
// two ranks deadlock. So the launches of a process have a single order over all its communicators
// (dp, tp, pp, world), which is the order of its calls:
//   - A call that its group has made before is launched by the calling thread, before the call
//     returns. Autograd runs hooks on one thread while the caller of backward() waits, so these
//     calls are in program order.
//   - A collective that is made for the first time must be agreed on first ([Note: agreement]).
//     It waits in a queue, and all later collectives of the process wait behind it. A separate
//     thread launches them in that order. Sends and receives do not wait there: they are
//     independent of collectives, and two ranks that send before they receive must not block.
// This cannot deadlock. Assume a program that would end if every collective blocked its caller, as
// a program with MPI's blocking calls must. Then all collectives of all ranks have one order that
// is consistent with the program order of each rank: the order in which such a run completes them.
// Take the first collective in that order that has not ended. On each of its ranks all earlier
// launches have ended, so it is the oldest on each GPU and starts, regardless of the rest. Hence it
// ends. A send has its own communicator and stream and needs one block of the GPU.
// NCCL_LAUNCH_ORDER_IMPLICIT (NCCL 2.26 and later; set by init()) ensures that the collectives
// after it find room: each kernel starts only when the previously launched one is completely on the
// GPU.
class LaunchOrder {
 public:
  LaunchOrder();
  ~LaunchOrder();
  LaunchOrder(const LaunchOrder&) = delete;
  LaunchOrder& operator=(const LaunchOrder&) = delete;

  enum class How {
    now,       // by the caller, or behind queued collectives if there are any
    on_thread  // always on the thread, behind queued collectives
  };
  // Runs a task, which must not throw, or queues it.
  void put(std::function<void()> task, How how);

  // Waits until the queue is empty and returns true, or until `go_on`, which is polled, returns
  // false.
  bool wait_until_empty(const std::function<bool()>& go_on);

  // Held by the launching thread, for collectives and messages ([Note: one launcher]).
  LaunchTurn turn;

 private:
  struct Core;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm::nccl
