#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "tessera/core/fd.h"
#include "tessera/dashboard/connection.h"

namespace tessera::dashboard {

// Connections between their requests: none of them has a thread. Who speaks first is served first.
class Lobby {
 public:
  // `wake` is readable when all is over, and nobody waits in next() then.
  explicit Lobby(int wake);

  // Waits here for its next request, so many seconds.
  void wait(std::unique_ptr<Connection> connection, double seconds);
  // One that has something to say; nothing where none has for a while.
  std::unique_ptr<Connection> next();
  // Closes those that have waited too long.
  void sweep();
  // Closes the one that has been silent longest, if that is a moment at least: others want in.
  bool dismiss_one();

 private:
  struct Guest {
    std::unique_ptr<Connection> connection;
    Connection::Clock::time_point since, until;
  };
  Fd ready_;  // epoll
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  // By a number that is new each time, so that what the kernel still says of one that is gone means
  // nobody else.
  std::unordered_map<std::uint64_t, Guest> guests_;
};

}  // namespace tessera::dashboard
