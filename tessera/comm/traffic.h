#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "tessera/comm/call.h"

namespace tessera::comm {

struct Collective;

// Traffic of one rank in one group. Subtract two readings to get that of an interval.
struct TrafficCounts {
  std::uint64_t sent_bytes = 0;     // ring-equivalent, Traffic::model, padding included
  std::uint64_t control_bytes = 0;  // ring-equivalent, Traffic::control
  std::uint64_t copied_bytes = 0;   // physically written by this rank's copy and reduce loops
  // Time in these loops, for backends that have them. For nccl: the time that calls ran on the GPU,
  // including waits for other ranks.
  std::uint64_t busy_ns = 0;
  std::array<std::uint64_t, kOpCount> calls{};  // number of calls by Op
};
// Returns the traffic between two readings.
TrafficCounts operator-(const TrafficCounts& later, const TrafficCounts& earlier) noexcept;
// Returns the traffic of two groups together.
TrafficCounts operator+(const TrafficCounts& one, const TrafficCounts& other) noexcept;

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
