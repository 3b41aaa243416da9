#pragma once

#include <chrono>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Callbacks with the durations of a group's calls. They are called from the threads that run the
// calls or wait for them; `call` has no buffers.
class Observer {
 public:
  // A clock that all ranks of a host share.
  using Time = std::chrono::steady_clock::time_point;
  virtual ~Observer() = default;

  // Reports that a call moved data, or waited for its peers, from begin to end. A send or receive
  // begins when the previous one to or from the same rank has ended. For nccl this is the time on
  // the GPU, reported with a short delay; calls inside a CUDA graph are not reported.
  virtual void ran(const Collective& call, Time begin, Time end) = 0;
  // Reports that a thread was blocked in Work::wait() from begin to end.
  virtual void waited(const Collective& call, Time begin, Time end) = 0;
};

}  // namespace tessera::comm
