#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/core/memory_category.h"

namespace tessera::memory {

// Bytes in use now, and the most there were since the last reset_peak().
struct Usage {
  std::int64_t now = 0;
  std::int64_t peak = 0;
};

// A reading of a ledger.
struct LedgerCounts {
  std::array<Usage, kMemoryCategories> categories{};
  Usage total;  // its peak is of the sum, not the sum of the peaks

  // Of one category.
  const Usage& operator[](MemoryCategory category) const {
    return categories[static_cast<std::size_t>(category)];
  }
};

// Which memory a ledger counts: a rank that computes on a GPU counts that alone.
enum class CountedMemory : std::uint8_t { host, device };

// What one rank holds, by category. Counting is lock-free, so any thread may charge.
class Ledger {
 public:
  // `limit`: bytes the rank may hold in all; 0 is no limit. `owner` stands in the error.
  explicit Ledger(std::string owner = "this process", std::int64_t limit = 0,
                  CountedMemory counted = CountedMemory::host);

  // Throws OutOfMemoryError, with the ledger in it, where the limit would be passed; then nothing
  // has been charged.
  void charge(MemoryCategory category, std::int64_t bytes);
  // Takes back what was charged or noted.
  void release(MemoryCategory category, std::int64_t bytes) noexcept;
  // Counts what somebody else has handed out already, whatever the limit: a device's allocator
  // keeps that itself, see DeviceLimit.
  void note(MemoryCategory category, std::int64_t bytes) noexcept;

  LedgerCounts counts() const noexcept;
  void reset_peak() noexcept;  // the peaks start again from what is in use now
  const std::string& owner() const noexcept { return owner_; }
  std::int64_t limit() const noexcept { return limit_; }
  bool counts_host() const noexcept { return counted_ == CountedMemory::host; }
  // A table of a few lines: category, now, peak.
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

// The message of an OutOfMemoryError: who asked for what, the ledger, and what to do. `ledger` may
// be null.
std::string out_of_memory_message(const Ledger* ledger, MemoryCategory category, std::int64_t bytes,
                                  const std::string& reason);

// A charge that lasts as long as the value: for host memory that no allocator of ours hands out,
// such as shared segments. A default-constructed one, or one of a null ledger or of one that counts
// a device, is nothing.
class Charge {
 public:
  Charge() = default;
  // Charges at once, and throws as Ledger::charge() does.
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
