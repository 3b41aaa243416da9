#include "tessera/comm/nccl/launch_turn.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::comm::nccl {

using namespace std::chrono_literals;

LaunchTurn::Lock LaunchTurn::take(const GoOn& go_on) {
  Lock lock(mutex_, std::defer_lock);
  while (!lock.try_lock_for(100ms)) {
    if (!go_on()) return {};
  }
  return lock;
}

LaunchTurn::Lock LaunchTurn::take_in_order(Peers& peers, const Call& call,
                                           std::chrono::milliseconds timeout, const GoOn& go_on) {
  int before = -1, after = -1;
  for (const int rank : call.members) {
    if (rank < peers.rank()) before = std::max(before, rank);
    if (rank > peers.rank()) after = after < 0 ? rank : std::min(after, rank);
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (before >= 0) {
    const std::uint64_t seen = peers.notes_heard();
    if (peers.take_note(before, call.topic)) break;
    if (!go_on()) return {};
    if (std::chrono::steady_clock::now() > deadline) {
      throw PeerError(
          str("rank ", before, " did not begin within ", timeout.count() / 1000.0, " s"), before);
    }
    peers.wait_for_notes(seen, 100ms);
  }
  Lock lock = take(go_on);
  if (lock && after >= 0) peers.send_note(after, call.topic, "begin");
  return lock;
}

}  // namespace tessera::comm::nccl
