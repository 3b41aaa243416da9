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

struct Guest {
  Fd socket;  // does not block
  int rank = -1;
};

// Accepts connections and greets them side by side, so that one who says nothing delays nobody. See
// [Note: handshake]. Of those who have not proved themselves only so many are kept, and only for so
// long; when there are too many, the one that has been silent longest goes. On Unix sockets
// processes of other users are turned away at once.
//
// Runs in the caller's poll loop: add_to() appends to what is polled, act_on() gets it back.
class Reception {
 public:
  struct Limits {
    std::size_t callers = 64;  // besides as many as the job has ranks
    std::chrono::milliseconds patience = std::chrono::seconds(10);
  };

  Reception(std::vector<Fd> listeners, Invitation invitation, Limits limits);
  Reception(std::vector<Fd> listeners, Invitation invitation)
      : Reception(std::move(listeners), std::move(invitation), Limits()) {}

  void add_to(std::vector<pollfd>& polls);
  // Who has proved to be a rank of this job since.
  std::vector<Guest> act_on(std::span<const pollfd> polls);
  // For poll(): the milliseconds until something is due, -1 for never.
  int wait_ms() const;
  // Nobody comes in any more, and whoever is still at the door goes.
  void close();

  std::size_t callers() const { return callers_.size(); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Caller {
    Fd socket;
    Challenge challenge;
    std::string heard;
    Clock::time_point end;
  };

  void accept_from(const Fd& listener);
  // False when it has to go; what it proved is in `guest` then, if anything.
  bool listen_to(Caller& caller, Guest& guest);

  std::vector<Fd> listeners_;
  const Invitation invitation_;
  const Limits limits_;
  std::deque<Caller> callers_;  // the oldest first
  Clock::time_point pause_{};   // accepting fails, and would fail again at once
};

}  // namespace tessera::comm
