#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/mpi/wire.h"
#include "tessera/comm/watch.h"

namespace tessera::comm::mpi {

// The messages of one group, by rank of the group, and waits for them that end: with the message,
// or with an error that says who is gone, late or broken. For one thread at a time.
class Courier {
 public:
  using Doing = std::function<std::string()>;

  Courier(std::shared_ptr<Runtime> runtime, std::shared_ptr<Watch> watch, int first_tag);

  Ticket send(const void* data, std::size_t bytes, int rank, Channel channel,
              std::shared_ptr<void> keep = {});
  Ticket receive(void* data, std::size_t bytes, int rank, Channel channel,
                 std::shared_ptr<void> keep = {});

  // Waits for a message from or to `rank`. A null ticket is done.
  void await(const Ticket& transfer, int rank, const Doing& doing);

  // Throws if the message failed, or if going on waiting for it makes no sense.
  void check(const Ticket& transfer, int rank, Watch::Clock::time_point since, const Doing& doing);

  // After an error in the middle of an operation: MPI may still hold pointers to its buffers.
  void give_up() noexcept { runtime_->break_off(); }

  Bell& bell() noexcept { return *bell_; }

 private:
  int world(int rank) const { return watch_->members()[static_cast<std::size_t>(rank)]; }
  void verify(const Transfer& transfer, int rank, const Doing& doing) const;
  bool last_look(const Transfer& transfer, int rank);

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<Watch> watch_;
  const int first_tag_;
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
};

// A message of any size in pieces, few of them in flight, so that a deadline can count from the
// last piece that moved instead of allowing for the slowest network. Straight from and to the
// caller's memory. Both ends cut alike.
class Stream {
 public:
  Stream(Transfer::Kind kind, const void* data, std::size_t bytes, int rank, Channel channel)
      : kind_(kind),
        data_(static_cast<std::byte*>(const_cast<void*>(data))),
        bytes_(bytes),
        rank_(rank),
        channel_(channel) {}

  // Puts pieces on their way and takes note of those that arrived. Returns whether any did.
  bool advance(Courier& courier);
  bool finished() const noexcept { return moved_ == bytes_; }
  std::size_t moved() const noexcept { return moved_; }
  int rank() const noexcept { return rank_; }
  const Ticket& oldest() const { return open_.front(); }  // not finished, and advanced before

 private:
  Transfer::Kind kind_;
  std::byte* data_;
  std::size_t bytes_;
  int rank_;
  Channel channel_;
  std::size_t begun_ = 0;
  std::size_t moved_ = 0;
  std::deque<Ticket> open_;
};

// Moves all of them to their end.
void run(std::span<Stream> streams, Courier& courier, const Courier::Doing& doing);

}  // namespace tessera::comm::mpi
