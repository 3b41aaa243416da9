#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

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

// Memory counted by a ledger. A rank that computes on a GPU counts only the memory of the GPU.
enum class CountedMemory : std::uint8_t { host, device };

// Memory held by one rank, by category. Thread-safe and lock-free.
class Ledger {
 public:
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
  Counter& counter(MemoryCategory category) {
    return categories_[static_cast<std::size_t>(category)];
  }

  const std::string owner_;
  const std::int64_t limit_;
  const CountedMemory counted_;
  std::array<Counter, kMemoryCategories> categories_;
  Counter total_;
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
