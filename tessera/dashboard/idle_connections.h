#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tessera/core/fd.h"
#include "tessera/dashboard/connection.h"

namespace tessera::dashboard {

// Connections that wait for their client: for a request, for the rest of one, or for room to send.
// None of them holds a thread. They are served in the order in which their clients act.
class Lobby {
 public:
  // `wake` becomes readable when the server stops; next() returns at once then.
  explicit Lobby(int wake);

  // Keeps the connection until its client acts: sends, or accepts what is unsent.
  void wait(std::unique_ptr<Connection> connection);
  // A connection whose client has acted; null if there is none for a while.
  std::unique_ptr<Connection> next();
  // Removes those whose deadline has passed.
  std::vector<std::unique_ptr<Connection>> take_overdue();
  // Removes the one that has waited longest, to make room for another client; null if none has
  // waited for 200 ms. Sending a request byte by byte does not make a connection younger.
  std::unique_ptr<Connection> take_oldest();

 private:
  Fd ready_;  // epoll
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  // By a number that is new each time, so that an event of a connection that is gone is not taken
  // for one of its successor.
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> guests_;
};

}  // namespace tessera::dashboard
