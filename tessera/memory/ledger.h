#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/memory_category.h"

namespace tessera::memory {

// Bytes in use now, and their maximum since the last reset_peak().
struct Usage {
  std::int64_t now = 0;
  std::int64_t peak = 0;
};

// Snapshot of a ledger.
struct LedgerCounts {
  std::array<Usage, kMemoryCategories> categories{};
  Usage total;  // its peak is the peak of the sum, not the sum of the peaks

  // Returns the usage of one category.
  const Usage& operator[](MemoryCategory category) const {
    return categories[static_cast<std::size_t>(category)];
  }
};

// Bytes in use at one time, by category.
struct MemoryPoint {
  std::chrono::steady_clock::time_point time;
  std::array<std::int64_t, kMemoryCategories> bytes{};

  std::int64_t total() const;
};

// Memory counted by a ledger. A rank that computes on a GPU counts only the memory of the GPU.
enum class CountedMemory : std::uint8_t { host, device };

// Memory held by one rank, by category. Thread-safe, and lock-free except while it records.
class Ledger {
 public:
  // Most points of a recording.
  static constexpr std::size_t kMostPoints = 512;

  // `limit`: maximum total bytes of the rank; 0: no limit. `owner`: name in error messages.
  explicit Ledger(std::string owner = "this process", std::int64_t limit = 0,
                  CountedMemory counted = CountedMemory::host);

  // Adds bytes. If that would exceed the limit, charges nothing and throws OutOfMemoryError, which
  // contains the ledger.
  void charge(MemoryCategory category, std::int64_t bytes);
  // Subtracts bytes that were charged or noted.
  void release(MemoryCategory category, std::int64_t bytes) noexcept;
  // Adds bytes that were already allocated, regardless of the limit: the allocator of a device
  // enforces its own limit, see DeviceLimit.
  void note(MemoryCategory category, std::int64_t bytes) noexcept;

  LedgerCounts counts() const noexcept;
  void reset_peak() noexcept;  // sets the peaks to the bytes in use now

  // [Note: recording] From start_recording() to stop_recording() every change of the bytes in use
  // is a point. Time is divided into equal intervals; an interval keeps its highest and its last
  // point. When there are too many intervals, each two become one. So the number of points is
  // bounded and the maximum is exact. A change costs one branch while nothing is recorded.
  void start_recording();
  // Returns the points since start_recording() in order of time. The first and the last are those
  // of the two calls.
  std::vector<MemoryPoint> stop_recording();

  const std::string& owner() const noexcept { return owner_; }
  std::int64_t limit() const noexcept { return limit_; }
  bool counts_host() const noexcept { return counted_ == CountedMemory::host; }
  // Returns a table with one line per category: name, now, peak.
  std::string report() const;

 private:
  struct Counter {
    std::atomic<std::int64_t> now{0};
    std::atomic<std::int64_t> peak{0};
    void add(std::int64_t bytes) noexcept;
  };
  struct Interval {
    std::int64_t index = 0;  // begins at index · width
    MemoryPoint highest, last;
  };
  void record() noexcept {
    if (recording_.load(std::memory_order_relaxed)) add_point();
  }
  void add_point() noexcept;
  MemoryPoint point() const noexcept;
  Counter& counter(MemoryCategory category) {
    return categories_[static_cast<std::size_t>(category)];
  }

  const std::string owner_;
  const std::int64_t limit_;
  const CountedMemory counted_;
  std::array<Counter, kMemoryCategories> categories_;
  Counter total_;

  std::atomic<bool> recording_{false};
  std::mutex recording_mutex_;  // guards what follows
  MemoryPoint first_;
  std::chrono::steady_clock::duration width_{};
  std::vector<Interval> intervals_;
};

// Returns the message of an OutOfMemoryError: the request, the reason, the ledger and what to do.
// `ledger` may be null.
std::string out_of_memory_message(const Ledger* ledger, MemoryCategory category, std::int64_t bytes,
                                  const std::string& reason);

// RAII charge for host memory that does not come from our allocator, such as shared segments.
// Without effect if default-constructed, if the ledger is null or if it counts a device.
class Charge {
 public:
  Charge() = default;
  // Charges immediately. Throws like Ledger::charge().
  Charge(std::shared_ptr<Ledger> ledger, MemoryCategory category, std::int64_t bytes);
  Charge(Charge&& other) noexcept;
  Charge& operator=(Charge&& other) noexcept;
  ~Charge();

 private:
  std::shared_ptr<Ledger> ledger_;
  MemoryCategory category_ = MemoryCategory::temporary;
  std::int64_t bytes_ = 0;
};

}  // namespace tessera::memory
