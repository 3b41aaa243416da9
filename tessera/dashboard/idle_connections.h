#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "tessera/core/fd.h"
#include "tessera/dashboard/connection.h"

namespace tessera::dashboard {

// Connections that wait for their client, polled with epoll: for a request, for the rest of one, or
// for room to send. None of them holds a thread. They are served in the order in which their
// clients act.
class IdleConnections {
 public:
  // `wake` becomes readable when the server stops; next() then returns immediately.
  explicit IdleConnections(int wake);

  // Holds the connection until its client sends, or accepts unsent bytes.
  void wait(std::unique_ptr<Connection> connection);
  // Returns a connection whose client has acted; null after 200 ms without one.
  std::unique_ptr<Connection> next();
  // Removes and returns the connections whose deadline has passed.
  std::vector<std::unique_ptr<Connection>> take_overdue();
  // Removes and returns the connection that has waited longest, to make room for another client;
  // null if none has waited for 200 ms. Sending a request byte by byte does not reset its age.
  std::unique_ptr<Connection> take_oldest();

 private:
  Fd ready_;  // epoll
  std::mutex mutex_;
  std::uint64_t last_ = 0;
  // By a new number for each wait(), so that an event of a closed connection is not attributed to
  // its successor.
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> connections_;
};

}  // namespace tessera::dashboard
