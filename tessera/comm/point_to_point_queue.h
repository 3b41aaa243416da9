#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "tessera/comm/backend.h"

namespace tessera::comm {

// How one rank of a group moves its sends and receives, a step at a time. It knows nothing of
// threads or of other messages: PointToPointQueue calls it from one thread at a time, except
// notify() and abandon().
class PointToPointTransport {
 public:
  // A send or a receive that has come to the head of its line. Transports keep in it what they
  // need to remember from one step to the next.
  struct Message {
    explicit Message(Collective what) : call(std::move(what)) {}
    virtual ~Message() = default;

    const Collective call;
    std::chrono::steady_clock::time_point since{};  // it began, or last moved
    bool finished = false;
  };

  virtual ~PointToPointTransport() = default;

  virtual std::unique_ptr<Message> make_message(Collective call) const = 0;

  // Moves what can be moved without waiting, and sets `finished` at the end. Returns whether
  // anything moved. Throws UsageError when the two ranks disagree, PeerError when the other one is
  // gone or late.
  virtual bool move(Message& message) = 0;

  // A message failed, in move() or in what its caller attached to it.
  virtual void on_error() noexcept {}

  // Waits until something may have moved since events() was `seen`, but not for long.
  virtual std::uint64_t events() = 0;
  virtual void wait(std::uint64_t seen) = 0;
  // Ends a wait() of another thread.
  virtual void notify() = 0;

  // Makes every later move() throw. For tear-down.
  virtual void abandon() = 0;
};

// Runs the sends and receives of one rank, without the caller waiting for them. Messages between
// one pair of ranks keep their order in each direction; everything else goes on side by side, so
// two ranks that send to each other before they receive do not block.
//
// As in Queue ([Note: who runs it]), whoever waits does the work, and a thread of its own does it
// when nobody waits.
class PointToPointQueue {
 public:
  PointToPointQueue(std::shared_ptr<PointToPointTransport> transport, int ranks);

  // Finishes what was submitted; if an exception is on its way up, fails it instead.
  ~PointToPointQueue();

  PointToPointQueue(const PointToPointQueue&) = delete;
  PointToPointQueue& operator=(const PointToPointQueue&) = delete;

  Work submit(Collective call, Attachments attachments);

 private:
  struct Core;
  struct Item;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm
