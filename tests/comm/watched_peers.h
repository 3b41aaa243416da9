#pragma once

// Peers of which a test says what happens just before one is asked how another rank is.

#include <functional>
#include <utility>

#include "tessera/comm/forwarded_peers.h"

namespace tessera::comm::testing {

class WatchedPeers final : public ForwardedPeers {
 public:
  using ForwardedPeers::ForwardedPeers;

  // Called once, by whoever asks for the state of another rank first.
  std::function<void()> before_state;

  PeerState state(int other) const override {
    if (other != rank() && before_state) {
      std::exchange(const_cast<WatchedPeers*>(this)->before_state, nullptr)();
    }
    return ForwardedPeers::state(other);
  }
};

}  // namespace tessera::comm::testing
