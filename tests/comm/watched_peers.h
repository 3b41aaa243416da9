#pragma once

// Peers with a callback that runs just before the state of another rank is returned.

#include <functional>
#include <utility>

#include "tessera/comm/forwarded_peers.h"

namespace tessera::comm::testing {

class WatchedPeers final : public ForwardedPeers {
 public:
  using ForwardedPeers::ForwardedPeers;

  // Called once, by the first query of another rank's state.
  std::function<void()> before_state;

  PeerState state(int other) const override {
    if (other != rank() && before_state) {
      std::exchange(const_cast<WatchedPeers*>(this)->before_state, nullptr)();
    }
    return ForwardedPeers::state(other);
  }
};

}  // namespace tessera::comm::testing
