#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/comm/liveness.h"
#include "tessera/comm/mpi/runtime.h"
#include "tessera/comm/mpi/wire.h"

namespace tessera::comm::mpi {

// Sends and receives messages of one group, by rank of the group. Its waits always end: with the
// message, or with an error that says who is gone, late or broken. For one thread at a time.
class Endpoint {
 public:
  using Doing = std::function<std::string()>;

  Endpoint(std::shared_ptr<Runtime> runtime, std::shared_ptr<Liveness> liveness, int first_tag);

  TransferPtr send(const void* data, std::size_t bytes, int rank, Tag tag,
                   std::shared_ptr<void> keep = {});
  TransferPtr receive(void* data, std::size_t bytes, int rank, Tag tag,
                      std::shared_ptr<void> keep = {});

  // Waits for a message from or to `rank`. A null pointer is done.
  void await(const TransferPtr& transfer, int rank, const Doing& doing);

  // Throws if the message failed, or if going on waiting for it makes no sense.
  void check(const TransferPtr& transfer, int rank, Liveness::Clock::time_point since,
             const Doing& doing);

  // After an error in the middle of an operation, when MPI may still hold pointers to its buffers.
  void abandon_mpi() noexcept { runtime_->abandon(); }

  EventCount& events() noexcept { return *events_; }

 private:
  int world(int rank) const { return liveness_->members()[static_cast<std::size_t>(rank)]; }
  void verify(const Transfer& transfer, int rank, const Doing& doing) const;
  bool last_look(const Transfer& transfer, int rank);

  const std::shared_ptr<Runtime> runtime_;
  const std::shared_ptr<Liveness> liveness_;
  const int first_tag_;
  const std::shared_ptr<EventCount> events_ = std::make_shared<EventCount>();
};

// A message of any size as several transfers, few of them in flight, so that a deadline can count
// from the last piece that moved instead of allowing for the slowest network. It goes straight from
// and to the caller's memory. Both ends cut it alike.
class PiecewiseTransfer {
 public:
  PiecewiseTransfer(Transfer::Kind kind, const void* data, std::size_t bytes, int rank, Tag tag)
      : kind_(kind),
        data_(static_cast<std::byte*>(const_cast<void*>(data))),
        bytes_(bytes),
        rank_(rank),
        tag_(tag) {}

  // Puts pieces on their way and takes note of those that arrived. Returns whether any did.
  bool advance(Endpoint& endpoint);
  bool finished() const noexcept { return moved_ == bytes_; }
  std::size_t moved() const noexcept { return moved_; }
  int rank() const noexcept { return rank_; }
  const TransferPtr& oldest() const { return open_.front(); }  // not finished, and advanced before

 private:
  Transfer::Kind kind_;
  std::byte* data_;
  std::size_t bytes_;
  int rank_;
  Tag tag_;
  std::size_t begun_ = 0;
  std::size_t moved_ = 0;
  std::deque<TransferPtr> open_;
};

// Moves all of them to their end.
void run(std::span<PiecewiseTransfer> transfers, Endpoint& endpoint, const Endpoint::Doing& doing);

}  // namespace tessera::comm::mpi
