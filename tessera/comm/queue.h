#pragma once

#include <memory>
#include <string>

#include "tessera/comm/backend.h"
#include "tessera/comm/transport.h"

namespace tessera::comm {

// Runs a transport's collectives in order, without the caller waiting for them.
//
// [Note: who runs it] One thread at a time, of three kinds. A progress thread runs what was
// submitted. A thread that waits for a Work runs what is still ahead of it instead of sleeping,
// which saves a hand-over and a context switch. A short collective on an idle queue is tried at
// once by the thread that submits it, which leaves it to the others if the peers are not there
// after a few microseconds. `busy` is the right to use the transport: exactly one thread has it.
class Queue {
 public:
  Queue(std::shared_ptr<Transport> transport, std::string name);

  // Finishes what was submitted; if an exception is on its way up, fails it instead.
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
