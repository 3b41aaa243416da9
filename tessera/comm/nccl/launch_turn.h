#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/peers.h"

namespace tessera::comm::nccl {

// Lock that lets one thread of a process launch NCCL kernels at a time.
//
// [Note: one launcher] With NCCL_LAUNCH_ORDER_IMPLICIT, which [Note: launch order] needs, NCCL
// rejects concurrent launches by two threads of a process, and messages have their own threads
// besides that of the collectives. So a thread holds its process's turn during a launch.
//   - A call that was made before launches without waiting for other ranks, and holds the turn for
//     microseconds.
//   - A new call may make NCCL connect first, inside the same function, which waits for the other
//     ranks of the call. If rank A did so for a message and rank B for a collective, each would
//     hold the turn that the other's thread needs. So the ranks of a new call take their turns in
//     the order of their ranks in the job: each waits for a note from the previous one. The holder
//     of a turn then waits only for turns of higher ranks, and the highest rank waits for none.
class LaunchTurn {
 public:
  using Lock = std::unique_lock<std::timed_mutex>;
  using GoOn = std::function<bool()>;  // polled while waiting; false ends the wait

  // Waits for the turn. Returns an unlocked Lock if `go_on` returned false.
  Lock take(const GoOn& go_on);

  // A new call: the ranks of the job that make it, including this one, and a topic for their notes.
  struct Call {
    std::vector<int> members;
    std::string topic;
  };
  // Takes the turn for a new call. Throws PeerError if the previous rank does not take its turn
  // before the timeout.
  Lock take_in_order(Peers& peers, const Call& call, std::chrono::milliseconds timeout,
                     const GoOn& go_on);

 private:
  std::timed_mutex mutex_;
};

}  // namespace tessera::comm::nccl
