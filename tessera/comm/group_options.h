#pragma once

#include <chrono>

namespace tessera::comm {

// Emulated link that is slower than the shared memory of a host, for experiments. 0 disables a
// limit.
struct LinkOptions {
  double bandwidth = 0;  // bytes per second sent by one rank
  double latency = 0;    // seconds per step of a ring
  bool slowed() const { return bandwidth > 0 || latency > 0; }
};

// Options common to all backends.
struct GroupOptions {
  // Maximum wait for a peer that is alive but does not make the matching call.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // Time to spin before sleeping. 0 sleeps immediately; negative chooses by ranks and cores.
  std::chrono::microseconds spin{-1};
  LinkOptions link = {};  // shm only
};

}  // namespace tessera::comm
