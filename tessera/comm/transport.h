#pragma once

#include "tessera/comm/collective.h"

namespace tessera::comm {

// How one rank of a group carries out collectives, one at a time and in order. It knows nothing of
// threads or queues: Queue calls it from one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;

  // Whether the collective is short enough to be tried on the caller's own thread.
  virtual bool quick(const Collective& call) const = 0;

  // Announces the collective to the peers. Never waits for one.
  virtual void post(const Collective& call) = 0;

  // Carries the collective last posted to its end. If `may_give_up` it returns false when the peers
  // are not there after a short while, having changed nothing, and is called again later. Throws
  // UsageError when the ranks disagree, PeerError when one is gone or late.
  virtual bool finish(const Collective& call, bool may_give_up) = 0;

  // Makes a finish() in progress on another thread, and all later ones, throw. For tear-down.
  virtual void abandon() = 0;
};

}  // namespace tessera::comm
