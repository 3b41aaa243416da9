#include "tessera/comm/shm/point_to_point.h"

#include <algorithm>
#include <utility>

#include "tessera/comm/copy.h"
#include "tessera/comm/shm/link.h"
#include "tessera/core/text.h"

namespace tessera::comm::shm {
namespace {
constexpr auto kLongestWait = std::chrono::milliseconds(50);
constexpr std::size_t kDirectBytes = 4 << 20;  // per step of a direct message, so that others move
}  // namespace

struct ShmPointToPoint::ShmMessage final : PointToPointMessage {
  using PointToPointMessage::PointToPointMessage;

  bool begun = false;         // its header was sent or received
  bool direct = false;        // the receiver reads directly from the sender's buffer
  std::uint32_t receipt = 0;  // direct send: value of the ring's tail after the receiver read it
  std::size_t moved = 0;      // bytes of the message that this side has handled
  Time release{};             // send over a slowed link: time until which it is held
};

std::shared_ptr<PointToPointMessage> ShmPointToPoint::make_message(Collective call) const {
  return std::make_shared<ShmMessage>(std::move(call));
}

void ShmPointToPoint::wait(std::uint64_t seen) {
  const auto value = static_cast<std::uint32_t>(seen);
  if (activity().spin(value + 1, spin_)) return;
  std::chrono::nanoseconds longest = kLongestWait;
  if (link_.slowed()) {
    const auto now = std::chrono::steady_clock::now();
    const auto release = std::exchange(next_release_, {});  // the next round sets it again
    if (release > now) longest = std::min<std::chrono::nanoseconds>(longest, release - now);
  }
  activity().sleep(value, longest);
}

// Returns whether a message is still in transit on the slowed link.
bool ShmPointToPoint::held(ShmMessage& message) {
  const auto now = std::chrono::steady_clock::now();
  if (message.release == PointToPointMessage::Time{}) {
    message.release = now + link_time(link_, message.call, ranks_, rank_);
  }
  if (now >= message.release) return false;
  liveness_->check_failure([&] { return describe(message.call); });
  if (next_release_ < now || message.release < next_release_) next_release_ = message.release;
  return true;
}

bool ShmPointToPoint::move(PointToPointMessage& message) {
  auto& own = static_cast<ShmMessage&>(message);
  if (link_.slowed() && own.call.op == Op::send && held(own)) return false;
  const bool moved = own.call.op == Op::send ? advance_send(own) : advance_receive(own);
  if (!moved) {
    liveness_->check(
        own.call.peer, own.since, [&] { return describe(own.call); }, [&] { return ready(own); });
  }
  return moved;
}

// Returns whether the other side has done what this one waits for. Checked again before a peer is
// reported as gone, because it may have done so just before it left.
bool ShmPointToPoint::ready(const ShmMessage& message) const {
  const int peer = message.call.peer;
  if (message.call.op == Op::recv) {
    const PacketRing& ring = control_.ring(peer, rank_);
    return ring.head.load(std::memory_order_acquire) != ring.tail.load(std::memory_order_relaxed);
  }
  const PacketRing& ring = control_.ring(rank_, peer);
  const std::uint32_t tail = ring.tail.load(std::memory_order_acquire);
  if (message.direct && message.begun) return reached(tail, message.receipt);
  return ring.head.load(std::memory_order_relaxed) - tail < kPackets;
}

// Puts as many packets into the ring as fit. Returns whether anything moved.
bool ShmPointToPoint::advance_send(ShmMessage& message) {
  const Collective& call = message.call;
  PacketRing& ring = control_.ring(rank_, call.peer);
  const std::size_t bytes = call.bytes();
  bool moved = false;
  if (message.direct && message.begun) {
    message.finished = reached(ring.tail.load(std::memory_order_acquire), message.receipt);
    return message.finished;
  }
  std::uint32_t head = ring.head.load(std::memory_order_relaxed);
  while (!message.finished && head - ring.tail.load(std::memory_order_acquire) < kPackets) {
    Packet& packet = ring.packets[head % kPackets];
    if (!message.begun) {
      packet.header = Header{make_record(call), {}, {}};
      if (bytes > kPacketBytes) packet.header.in = memories_->address(call.in, bytes);
      message.begun = true;
      message.direct = packet.header.in.memory != 0;
      message.receipt = head + 1;
    }
    const std::size_t some = message.direct ? 0 : std::min(kPacketBytes, bytes - message.moved);
    if (some > 0) {
      copy_bytes(packet.payload, static_cast<const std::byte*>(call.in) + message.moved, some);
      meter_->copied(some);
    }
    message.moved += some;
    ring.head.store(++head, std::memory_order_release);
    control_.block(call.peer).activity.notify();
    moved = true;
    if (message.direct) break;
    message.finished = message.moved == bytes;
  }
  return moved;
}

void ShmPointToPoint::begin_receive(ShmMessage& message, const Header& header) const {
  message.begun = true;
  message.direct = header.in.memory != 0;
  const std::string problem = compare_message(header.record, message.call.peer,
                                              make_record(message.call), rank_, liveness_->group());
  if (!problem.empty()) liveness_->fail(Failure::Kind::usage, -1, problem);
}

// Returns the address in this process of a direct message's buffer.
const std::byte* ShmPointToPoint::resolve(const ShmMessage& message, const Header& header) const {
  const std::byte* at = memories_->resolve(header.in, message.call.peer);
  if (at != nullptr) return at;
  liveness_->fail(
      Failure::Kind::usage, liveness_->members()[static_cast<std::size_t>(rank_)],
      str(describe(message.call), ": rank ", rank_, " has released the symmetric memory that rank ",
          message.call.peer, " sends from; keep it until all ranks are done with it"));
}

bool ShmPointToPoint::advance_receive(ShmMessage& message) {
  const Collective& call = message.call;
  PacketRing& ring = control_.ring(call.peer, rank_);
  const std::size_t bytes = call.bytes();
  auto* out = static_cast<std::byte*>(call.out);
  bool moved = false;
  std::uint32_t tail = ring.tail.load(std::memory_order_relaxed);
  while (!message.finished && ring.head.load(std::memory_order_acquire) != tail) {
    const Packet& packet = ring.packets[tail % kPackets];
    if (!message.begun) begin_receive(message, packet.header);
    const std::size_t most = message.direct ? kDirectBytes : kPacketBytes;
    const std::size_t some = std::min(most, bytes - message.moved);
    const std::byte* from =
        message.direct ? resolve(message, packet.header) + message.moved : packet.payload;
    if (some > 0) {
      copy_bytes(out + message.moved, from, some);
      meter_->copied(some);
    }
    message.moved += some;
    message.finished = message.moved == bytes;
    moved = true;
    // The packet of a direct message stays until all of it was read, so that others can move too.
    if (message.direct && !message.finished) break;
    ring.tail.store(++tail, std::memory_order_release);
    control_.block(call.peer).activity.notify();
  }
  return moved;
}

}  // namespace tessera::comm::shm
