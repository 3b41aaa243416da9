#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tessera/comm/record.h"
#include "tessera/comm/signal.h"

namespace tessera::comm::shm {

// Where a buffer lies: in symmetric memory `memory` at `offset` of the caller's part, or, if
// `memory` is 0, in the caller's own memory, where no peer can reach it.
struct Address {
  std::uint32_t memory = 0;
  std::uint64_t offset = 0;
};

// The header of a call inside one host: its record, and where its buffers lie.
struct Header {
  Record record;  // compared by the peers
  Address in;
  Address out;
};

inline constexpr std::size_t kSmallBytes = 16 << 10;    // travels with the header
inline constexpr std::size_t kStageBytes = 512 << 10;   // one piece of a staged collective
inline constexpr std::size_t kPacketBytes = 128 << 10;  // one piece of a staged send
inline constexpr std::uint32_t kPackets = 4;            // on their way from one rank to another

struct Slot {
  Header header;
  alignas(64) std::byte payload[kSmallBytes];
};

struct Packet {
  Header header;  // of the whole message
  alignas(64) std::byte payload[kPacketBytes];
};

// Packets on their way from one rank to another: `head` is written by the sender only and `tail` by
// the receiver only.
struct PacketRing {
  alignas(64) std::atomic<std::uint32_t> head;
  alignas(64) std::atomic<std::uint32_t> tail;
  Packet packets[kPackets];
};

// What one rank shows the others. Two of everything: one may still be read by a slow peer while the
// next is written. [Note: slots] in transport.h says why two are enough.
struct alignas(4096) ControlBlock {
  Signal posted;    // sequence number of the last call whose header is in slots[sequence % 2]
  Signal phase;     // how many steps of large collectives this rank has taken
  Signal activity;  // changes whenever a peer puts a packet here or takes one of ours
  Slot slots[2];
  alignas(4096) std::byte stage[2][kStageBytes];   // what this rank gives to others
  alignas(4096) std::byte result[2][kStageBytes];  // what it has reduced for others
};

// The memory a group shares: one control block per rank, then one ring per ordered pair. Zeroed
// memory is the valid start; pages that are never used are never allocated.
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
