#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/comm/peers.h"

namespace tessera::comm::nccl {

// Who of a process's threads may launch in NCCL: one at a time.
//
// [Note: one launcher] With NCCL_LAUNCH_ORDER_IMPLICIT, which [Note: launch order] needs, NCCL
// refuses launches that two threads of a process make at the same time, and messages have threads
// of their own beside that of the collectives. So a launch holds its process's turn.
//   - A call that was made before launches without waiting for anybody: it holds the turn for
//     microseconds.
//   - A call that is new may have NCCL make connections first, inside the same function, and that
//     waits for the other ranks of the call. If rank A did so for a message and rank B for a
//     collective, each would hold the turn that the other's thread needs. So the ranks of a new
//     call take their turns one after another, in the order of their ranks in the job: each waits
//     for a note from the one before. Who holds a turn then waits only for turns of higher ranks,
//     and the highest one waits for nobody.
class LaunchTurn {
 public:
  using Lock = std::unique_lock<std::timed_mutex>;
  using GoOn = std::function<bool()>;  // asked now and then; false: waiting makes no sense

  // Not locked if `go_on` said no.
  Lock take(const GoOn& go_on);

  // The ranks of the job that make the call, this one among them, and a topic that is theirs.
  struct Call {
    std::vector<int> members;
    std::string topic;
  };
  // For a new call. Throws PeerError if the one before does not come in time.
  Lock take_in_order(Peers& peers, const Call& call, std::chrono::milliseconds timeout,
                     const GoOn& go_on);

 private:
  std::timed_mutex mutex_;
};

}  // namespace tessera::comm::nccl
