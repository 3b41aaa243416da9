#pragma once

#include <chrono>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Is told what the calls of a group cost. The functions are called from
// whichever threads run the calls or wait for them; the buffers of `call` may be gone by then.
class Observer {
 public:
  // A clock that all ranks of a host share.
  using Time = std::chrono::steady_clock::time_point;
  virtual ~Observer() = default;

  // The call moved data, or waited for its peers, from begin to end. A send or receive begins when
  // those before it, to or from the same rank, have ended. Of a call over nccl it is the time on
  // the GPU, told a little later; of one inside a CUDA graph nothing is told.
  virtual void ran(const Collective& call, Time begin, Time end) = 0;
  // A thread that needed the result was blocked from begin to end.
  virtual void waited(const Collective& call, Time begin, Time end) = 0;
};

}  // namespace tessera::comm
