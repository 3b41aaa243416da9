#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "tessera/comm/call.h"

namespace tessera::comm {

struct Collective;

// Atomic counters behind TrafficCounts; threads of one rank may use them concurrently.
class TrafficMeter {
 public:
  // Counts a call as if it ran as a ring, independently of the backend's algorithm.
  void charge(const Collective& call, int ranks, int rank) noexcept;
  // Counts bytes written by a copy or reduce loop.
  void copied(std::uint64_t bytes) noexcept { copied_.fetch_add(bytes, std::memory_order_relaxed); }
  // Counts time spent in copy and reduce loops.
  void busy(std::chrono::nanoseconds time) noexcept {
    busy_.fetch_add(static_cast<std::uint64_t>(time.count()), std::memory_order_relaxed);
  }
  // Adds traffic that was not charged call by call.
  void add(const TrafficCounts& counts) noexcept;
  TrafficCounts counts() const noexcept;

 private:
  std::atomic<std::uint64_t> busy_{0};
  std::atomic<std::uint64_t> sent_{0};
  std::atomic<std::uint64_t> control_{0};
  std::atomic<std::uint64_t> copied_{0};
  std::array<std::atomic<std::uint64_t>, kOpCount> calls_{};
};

}  // namespace tessera::comm
