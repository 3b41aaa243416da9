#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <utility>

#include "tessera/comm/group.h"
#include "tessera/memory/allocator.h"

namespace tessera::zero {

// A flat tensor of the engine, charged to its category as long as it lives.
struct Buffer {
  at::Tensor tensor;
  std::shared_ptr<memory::Charge> charge;
};

// Allocates the engine's buffers: in memory that the ranks share where they can, and always on the
// ledger.
class Buffers {
 public:
  explicit Buffers(std::shared_ptr<memory::Ledger> ledger) : ledger_(std::move(ledger)) {}

  // Returns true if the ranks of a group can map each other's memory.
  static bool shares(const comm::Group& group);

  // All are zero at first. own: this rank's alone. exposed: the ranks of a group read it in
  // collectives without a copy (collective over the group). common: one for all ranks of a group,
  // each of which is charged its part (collective over the group).
  Buffer own(std::int64_t count, at::TensorOptions options, MemoryCategory category) const;
  Buffer exposed(const comm::Group& group, std::int64_t count, at::TensorOptions options,
                 MemoryCategory category) const;
  Buffer common(const comm::Group& group, std::int64_t count, at::TensorOptions options,
                MemoryCategory category) const;

  const std::shared_ptr<memory::Ledger>& ledger() const { return ledger_; }

 private:
  std::shared_ptr<memory::Ledger> ledger_;
};

// Adds up what it measures; for the time a rank waits.
class Stopwatch {
 public:
  template <typename F>
  void time(F&& f) {
    const auto began = Clock::now();
    f();
    total_ += Clock::now() - began;
  }
  double seconds() const { return std::chrono::duration<double>(total_).count(); }
  void reset() { total_ = {}; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::duration total_{};
};

}  // namespace tessera::zero
