#pragma once

#include <poll.h>

#include <chrono>
#include <deque>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/comm/handshake.h"
#include "tessera/core/fd.h"

namespace tessera::comm {

// Connection that passed the handshake.
struct Accepted {
  Fd socket;  // non-blocking
  int rank = -1;
};

// Accepts connections and runs their handshakes ([Note: handshake]) concurrently, so that a silent
// peer does not delay the others. The number of unauthenticated connections and the time each may
// take are limited; above the limit the oldest is closed. On Unix sockets, connections from other
// users are closed immediately.
//
// Runs in the caller's poll loop: add_to() appends its descriptors, act_on() handles the results.
class Acceptor {
 public:
  struct Limits {
    std::size_t pending =
        64;  // unauthenticated connections, in addition to one per rank, at most 64 of them
    std::chrono::milliseconds timeout = std::chrono::seconds(10);  // for one handshake
  };

  Acceptor(std::vector<Fd> listeners, Credentials credentials, Limits limits);
  Acceptor(std::vector<Fd> listeners, Credentials credentials)
      : Acceptor(std::move(listeners), std::move(credentials), Limits()) {}

  void add_to(std::vector<pollfd>& polls);
  // Handles the poll results of the descriptors from add_to(). Returns the connections that
  // completed the handshake.
  std::vector<Accepted> act_on(std::span<const pollfd> polls);
  // Returns the timeout for poll() in milliseconds; -1 if there is no deadline.
  int wait_ms() const;
  // Closes the listeners and all unauthenticated connections.
  void close();

  std::size_t pending() const { return pending_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    Fd socket;
    Challenge challenge;
    std::string received;
    Clock::time_point end;
  };

  void accept_from(const Fd& listener);
  // Returns true if the handshake continues. When it ends, returns false and, if the peer was
  // accepted, moves the connection to `peer`.
  bool read_reply(Pending& pending, Accepted& peer);

  std::vector<Fd> listeners_;
  const Credentials credentials_;
  const Limits limits_;
  std::deque<Pending> pending_;  // oldest first
  Clock::time_point pause_{};    // accept4() failed; do not retry before this time
};

}  // namespace tessera::comm
