#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <utility>

#include "tessera/comm/group.h"
#include "tessera/memory/allocator.h"

namespace tessera::zero {

// Flat tensor of the engine, charged to its memory category for as long as it exists.
struct Buffer {
  at::Tensor tensor;
  std::shared_ptr<memory::Charge> charge;
};

// Allocator of the engine's buffers. Uses memory shared between ranks where possible, and charges
// every buffer to the ledger.
class Buffers {
 public:
  explicit Buffers(std::shared_ptr<memory::Ledger> ledger) : ledger_(std::move(ledger)) {}

  // Returns true if the ranks of a group can map each other's memory.
  static bool shares(const comm::Group& group);

  // All buffers start at zero. own(): private to this rank. exposed(): the ranks of the group read
  // it in collectives without a copy (collective over the group). common(): one buffer for all
  // ranks of the group; each rank is charged its part (collective over the group).
  Buffer own(std::int64_t count, at::TensorOptions options, MemoryCategory category) const;
  Buffer exposed(const comm::Group& group, std::int64_t count, at::TensorOptions options,
                 MemoryCategory category) const;
  Buffer common(const comm::Group& group, std::int64_t count, at::TensorOptions options,
                MemoryCategory category) const;

  const std::shared_ptr<memory::Ledger>& ledger() const { return ledger_; }

 private:
  std::shared_ptr<memory::Ledger> ledger_;
};

// Accumulated duration of timed calls, such as the time a rank waits.
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
