#pragma once

#include <chrono>
#include <memory>

#include "tessera/comm/point_to_point_queue.h"
#include "tessera/comm/shm/group_state.h"

namespace tessera::comm::shm {

// Sends and receives among the ranks of one host. The receiver reads a large message in symmetric
// memory directly from the sender's buffer; other messages are sent in packets. On a slowed link
// ([Note: slowed link]) the sender delays a message by its transfer time.
class ShmPointToPoint final : public PointToPointTransport, private GroupState {
 public:
  explicit ShmPointToPoint(GroupState group) : GroupState(std::move(group)) {}

  std::shared_ptr<PointToPointMessage> make_message(Collective call) const override;
  bool move(PointToPointMessage& message) override;
  std::uint64_t events() override { return activity().value.load(std::memory_order_acquire); }
  void wait(std::uint64_t seen) override;
  void notify() override { activity().notify(); }
  void abandon() override { liveness_->abandon(); }

 private:
  struct ShmMessage;

  Signal& activity() const { return control_.block(rank_).activity; }
  bool held(ShmMessage& message);
  bool ready(const ShmMessage& message) const;
  bool advance_send(ShmMessage& message);
  bool advance_receive(ShmMessage& message);
  void begin_receive(ShmMessage& message, const Header& header) const;
  const std::byte* resolve(const ShmMessage& message, const Header& header) const;

  std::chrono::steady_clock::time_point next_release_{};  // earliest of the held messages
};

}  // namespace tessera::comm::shm
