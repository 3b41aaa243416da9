#pragma once

#include <chrono>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Somebody who wants to know what the calls of a group cost. The functions are called from
// whichever threads run the calls or wait for them; the buffers of `call` may be gone by then.
class Observer {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~Observer() = default;

  // It moved data, or waited for its peers, from begin to end: for a send or receive since it came
  // to the head of its line. Host memory only: what runs on a GPU has no such times here.
  virtual void ran(const Collective& call, Time begin, Time end) = 0;
  // A thread that needed the result was held up for so long.
  virtual void waited(const Collective& call, Time begin, Time end) = 0;
};

}  // namespace tessera::comm
