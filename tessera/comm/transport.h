#pragma once

#include "tessera/comm/collective.h"

namespace tessera::comm {

// Executes the collectives of one rank of a group, one at a time and in order. It needs no locking:
// Queue calls it from one thread at a time, except abandon().
class Transport {
 public:
  virtual ~Transport() = default;

  // Returns whether the collective is short enough to be tried on the caller's thread.
  virtual bool quick(const Collective& call) const = 0;

  // Announces the collective to the peers. Never waits for them.
  virtual void post(const Collective& call) = 0;

  // Completes the collective that was posted last. With `may_give_up`, returns false without any
  // effect if the peers do not arrive within a short time; it is then called again later. Throws
  // UsageError if the calls of the ranks differ, PeerError if a rank is gone or late.
  virtual bool finish(const Collective& call, bool may_give_up) = 0;

  // Makes a finish() in progress on another thread, and all later ones, throw. For teardown.
  virtual void abandon() = 0;
};

}  // namespace tessera::comm
