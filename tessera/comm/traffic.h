#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "tessera/comm/collective.h"

namespace tessera::comm {

// What one rank sent through one group, as a plain value; subtract two to get an interval.
struct TrafficCounts {
  std::uint64_t sent_bytes = 0;     // ring-equivalent, Traffic::model, padding included
  std::uint64_t control_bytes = 0;  // ring-equivalent, Traffic::control
  std::uint64_t copied_bytes = 0;   // physically written by this rank's copy and reduce loops
  // Spent in these loops, where the backend has loops of its own; over nccl the time that calls
  // were on the GPU, waiting for other ranks included.
  std::uint64_t busy_ns = 0;
  std::array<std::uint64_t, kOpCount> calls{};
};
// What was sent between two readings.
TrafficCounts operator-(const TrafficCounts& later, const TrafficCounts& earlier) noexcept;
// What two groups sent together.
TrafficCounts operator+(const TrafficCounts& one, const TrafficCounts& other) noexcept;

// The counters themselves; threads of one rank may count at the same time.
class TrafficMeter {
 public:
  // Counts a call as a ring would send it, whatever the backend does.
  void charge(const Collective& call, int ranks, int rank) noexcept;
  // Counts what a copy or reduce loop wrote.
  void copied(std::uint64_t bytes) noexcept { copied_.fetch_add(bytes, std::memory_order_relaxed); }
  // Counts time spent in such loops.
  void busy(std::chrono::nanoseconds time) noexcept {
    busy_.fetch_add(static_cast<std::uint64_t>(time.count()), std::memory_order_relaxed);
  }
  // What was sent without being charged call by call.
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
