#pragma once

#include <memory>
#include <string>

#include "tessera/comm/backend.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

// Runs a transport's collectives asynchronously and in order.
//
// [Note: running threads] One thread at a time runs collectives. It is one of three kinds. A
// progress thread runs submitted items. A thread that waits for a Work runs the items ahead of it
// instead of sleeping, which saves a handover and a context switch. The submitting thread tries a
// short collective on an idle queue immediately, and leaves it to the other threads if the peers do
// not arrive within a few microseconds. `busy` means that a thread is using the transport; only one
// may.
class Queue {
 public:
  Queue(std::shared_ptr<Transport> transport, std::string name);

  // Completes all submitted operations. During stack unwinding by an exception, makes them fail
  // instead.
  ~Queue();

  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Work submit(Collective call, Attachments attachments);

 private:
  struct Core;
  struct Item;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm
