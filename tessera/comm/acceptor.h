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

struct Accepted {
  Fd socket;  // does not block
  int rank = -1;
};

// Accepts connections and runs their handshakes ([Note: handshake]) side by side, so that one who
// says nothing delays nobody. Only so many unproved connections are kept, and only for so long;
// when there are too many, the oldest is closed. On Unix sockets processes of other users are
// refused at once.
//
// Runs in the caller's poll loop: add_to() appends to what is polled, act_on() gets it back.
class Acceptor {
 public:
  struct Limits {
    std::size_t pending = 64;  // besides as many as the job has ranks
    std::chrono::milliseconds timeout = std::chrono::seconds(10);
  };

  Acceptor(std::vector<Fd> listeners, Credentials credentials, Limits limits);
  Acceptor(std::vector<Fd> listeners, Credentials credentials)
      : Acceptor(std::move(listeners), std::move(credentials), Limits()) {}

  void add_to(std::vector<pollfd>& polls);
  // Who has proved to be a rank of this job since.
  std::vector<Accepted> act_on(std::span<const pollfd> polls);
  // For poll(): the milliseconds until something is due, -1 for never.
  int wait_ms() const;
  // Closes the listeners and all connections that are still unproved.
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
  // False when it has to go; what it proved is in `peer` then, if anything.
  bool read_reply(Pending& pending, Accepted& peer);

  std::vector<Fd> listeners_;
  const Credentials credentials_;
  const Limits limits_;
  std::deque<Pending> pending_;  // the oldest first
  Clock::time_point pause_{};    // accepting fails, and would fail again at once
};

}  // namespace tessera::comm
