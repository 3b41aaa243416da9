#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tessera/comm/record.h"
#include "tessera/comm/signal.h"

namespace tessera::comm::shm {

// Location of a buffer: `offset` in the caller's part of symmetric memory number `memory`. If
// `memory` is 0, the buffer is in private memory, which peers cannot access.
struct Address {
  std::uint32_t memory = 0;
  std::uint64_t offset = 0;
};

// Header of a call inside one host: its record and the location of its buffers.
struct Header {
  Record record;  // compared by the peers
  Address in;
  Address out;
};

inline constexpr std::size_t kSmallBytes = 16 << 10;    // largest data sent with the header
inline constexpr std::size_t kStageBytes = 512 << 10;   // one piece of a staged collective
inline constexpr std::size_t kPacketBytes = 128 << 10;  // one piece of a staged send
inline constexpr std::uint32_t kPackets = 4;            // in flight from one rank to another

struct Slot {
  Header header;
  alignas(64) std::byte payload[kSmallBytes];
};

struct Packet {
  Header header;  // of the whole message
  alignas(64) std::byte payload[kPacketBytes];
};

// Ring of packets from one rank to another. Only the sender writes `head`, and only the receiver
// `tail`.
struct PacketRing {
  alignas(64) std::atomic<std::uint32_t> head;
  alignas(64) std::atomic<std::uint32_t> tail;
  Packet packets[kPackets];
};

// Memory of one rank that its peers read. There are two of each buffer: a slow peer may still read
// one while the next is written. [Note: slots] in transport.h explains why two are enough.
struct alignas(4096) ControlBlock {
  Signal posted;    // sequence number of the last call whose header is in slots[sequence % 2]
  Signal phase;     // number of steps of large collectives that this rank has completed
  Signal activity;  // changes when a peer adds a packet for this rank or takes one of its packets
  Slot slots[2];
  alignas(4096) std::byte stage[2][kStageBytes];   // input of this rank for its peers
  alignas(4096) std::byte result[2][kStageBytes];  // shards that this rank reduced for its peers
};

// Memory shared by a group: one control block per rank, then one ring per ordered pair. It starts
// zeroed; pages that are never used are never allocated.
class ControlSegment {
 public:
  ControlSegment(std::byte* base, int ranks)
      : base_(base), ranks_(static_cast<std::size_t>(ranks)) {}

  static std::size_t bytes(int ranks) {
    const auto n = static_cast<std::size_t>(ranks);
    return n * sizeof(ControlBlock) + n * n * sizeof(PacketRing);
  }
  ControlBlock& block(int rank) const {
    return *reinterpret_cast<ControlBlock*>(base_ +
                                            static_cast<std::size_t>(rank) * sizeof(ControlBlock));
  }
  PacketRing& ring(int from, int to) const {
    const auto pair = static_cast<std::size_t>(from) * ranks_ + static_cast<std::size_t>(to);
    return *reinterpret_cast<PacketRing*>(base_ + ranks_ * sizeof(ControlBlock) +
                                          pair * sizeof(PacketRing));
  }

 private:
  std::byte* base_;
  std::size_t ranks_;
};

}  // namespace tessera::comm::shm
