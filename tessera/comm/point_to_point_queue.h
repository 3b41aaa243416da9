#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "tessera/comm/backend.h"

namespace tessera::comm {

class PointToPointQueue;

// A send or a receive. Transports derive from it to add their own state; the private members belong
// to the queue.
class PointToPointMessage : public WorkState {
 public:
  using Time = Observer::Time;

  explicit PointToPointMessage(Collective what) : call(std::move(what)) {}

  const Collective call;
  Time since{};  // when it reached the head of its line, or last moved
  bool finished = false;

  void wait() final;
  bool done() const final;

 private:
  friend class PointToPointQueue;
  struct Core;  // of the queue

  // Returns the index of its line; there is one per peer and direction.
  std::size_t line() const {
    return 2 * static_cast<std::size_t>(call.peer) + (call.op == Op::send);
  }

  std::shared_ptr<Core> core_;
  Attachments attachments_;
  Time began_{};        // when it reached the head of its line
  bool ended_ = false;  // guarded by the queue's mutex
  std::exception_ptr error_;
};

// Moves the sends and receives of one rank of a group step by step. It needs no locking and handles
// one message at a time: PointToPointQueue calls it from one thread at a time, except notify() and
// abandon().
class PointToPointTransport {
 public:
  virtual ~PointToPointTransport() = default;

  virtual std::shared_ptr<PointToPointMessage> make_message(Collective call) const = 0;

  // Moves as much as possible without waiting, and sets `finished` after the last byte. Returns
  // whether anything moved. Throws UsageError if the calls of the two ranks do not match, PeerError
  // if the other rank is gone or late. Called only for the first message of a line.
  virtual bool move(PointToPointMessage& message) = 0;

  // Called when a message failed, in move() or in a callback of its Attachments.
  virtual void on_error() noexcept {}

  // Returns a counter that changes when a message may be able to move.
  virtual std::uint64_t events() = 0;
  // Waits until events() differs from `seen`, but only for a short time.
  virtual void wait(std::uint64_t seen) = 0;
  // Ends a wait() of another thread.
  virtual void notify() = 0;

  // Makes every later move() throw. For teardown.
  virtual void abandon() = 0;
};

// Runs the sends and receives of one rank asynchronously. Messages between one pair of ranks keep
// their order in each direction; all others progress concurrently, so two ranks that send to each
// other before they receive do not deadlock.
//
// As in Queue ([Note: running threads]), a thread that waits for a Work does the work. A progress
// thread does it when no thread waits.
class PointToPointQueue {
 public:
  PointToPointQueue(std::shared_ptr<PointToPointTransport> transport, int ranks);

  // Completes all submitted operations. During stack unwinding by an exception, makes them fail
  // instead.
  ~PointToPointQueue();

  PointToPointQueue(const PointToPointQueue&) = delete;
  PointToPointQueue& operator=(const PointToPointQueue&) = delete;

  Work submit(Collective call, Attachments attachments);

 private:
  using Core = PointToPointMessage::Core;
  std::shared_ptr<Core> core_;
};

}  // namespace tessera::comm
