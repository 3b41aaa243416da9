#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "tessera/comm/backend.h"

namespace tessera::comm {

class PointToPointQueue;

// A send or a receive. Transports derive from it what they need to remember from one step to the
// next; the rest is the queue's.
class PointToPointMessage : public WorkState {
 public:
  using Time = Observer::Time;

  explicit PointToPointMessage(Collective what) : call(std::move(what)) {}

  const Collective call;
  Time since{};  // it came to the head of its line, or last moved
  bool finished = false;

  void wait() final;
  bool done() const final;

 private:
  friend class PointToPointQueue;
  struct Core;  // of the queue

  // Its line: one per peer and direction.
  std::size_t line() const {
    return 2 * static_cast<std::size_t>(call.peer) + (call.op == Op::send);
  }

  std::shared_ptr<Core> core_;
  Attachments attachments_;
  Time began_{};        // it came to the head of its line
  bool ended_ = false;  // set under the lock, for those who wait
  std::exception_ptr error_;
};

// How one rank of a group moves its sends and receives, a step at a time. It knows nothing of
// threads or of other messages: PointToPointQueue calls it from one thread at a time, except
// notify() and abandon().
class PointToPointTransport {
 public:
  virtual ~PointToPointTransport() = default;

  virtual std::shared_ptr<PointToPointMessage> make_message(Collective call) const = 0;

  // Moves what can be moved without waiting, and sets `finished` at the end. Returns whether
  // anything moved. Throws UsageError when the two ranks disagree, PeerError when the other one is
  // gone or late. Only for the first message of a line.
  virtual bool move(PointToPointMessage& message) = 0;

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
  using Core = PointToPointMessage::Core;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm
