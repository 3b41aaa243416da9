#include "tessera/memory/device_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/memory/allocator.h"
#include "tessera/memory/device_blocks.h"

namespace tessera::memory {
namespace {

// Uses c10's interface of caching allocators, so that no CUDA header or library is needed.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  c10::Allocator* found = nullptr;
  try {
    found = c10::GetAllocator(device.type());
  } catch (const c10::Error&) {  // thrown if there is no allocator
    return nullptr;
  }
  auto* const caching = dynamic_cast<c10::DeviceAllocator*>(found);
  return caching != nullptr && caching->initialized() ? caching : nullptr;
}

c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : 0; }

}  // namespace

std::optional<Usage> device_usage(c10::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  const auto stats = allocator->getDeviceStats(index_of(device));
  // Includes the rounding of block sizes, like the ledger.
  const auto& bytes =
      stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return Usage{bytes.current, bytes.peak};
}

namespace {

// Returns nullopt with versions of LibTorch that do not have getMemoryInfo().
template <class Allocator>
std::optional<std::pair<std::int64_t, std::int64_t>> free_and_total(Allocator& allocator,
                                                                    c10::DeviceIndex index) {
  if constexpr (requires { allocator.getMemoryInfo(index); }) {
    try {
      const auto [free, total] = allocator.getMemoryInfo(index);
      return std::pair{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
    } catch (const c10::Error&) {  // not supported by this allocator
    }
  }
  return std::nullopt;
}

std::optional<std::pair<std::int64_t, std::int64_t>> memory_of(c10::Device device) {
  c10::DeviceAllocator* const allocator = allocator_of(device);
  if (allocator == nullptr) return std::nullopt;
  return free_and_total(*allocator, index_of(device));
}

}  // namespace

std::optional<std::int64_t> device_free(c10::Device device) {
  const auto memory = memory_of(device);
  return memory ? std::optional(memory->first) : std::nullopt;
}

std::optional<std::int64_t> device_total(c10::Device device) {
  const auto memory = memory_of(device);
  return memory ? std::optional(memory->second) : std::nullopt;
}

void reset_device_peak(c10::Device device) {
  if (c10::DeviceAllocator* const allocator = allocator_of(device)) {
    allocator->resetPeakStats(index_of(device));
  }
}

namespace {

namespace profiler = torch::profiler::impl;

// Never destroyed: tensors may be freed by destructors of statics.
DeviceBlocks& device_blocks() {
  static auto* const blocks = new DeviceBlocks();
  return *blocks;
}

// LibTorch assumes that the object in this slot is one of its profilers. So this is a profiler that
// is disabled except for memory.
class DeviceReport final : public profiler::ProfilerStateBase {
 public:
  explicit DeviceReport(std::shared_ptr<Ledger> ledger)
      : ProfilerStateBase(profiler::ProfilerConfig(profiler::ProfilerState::Disabled,
                                                   /*report_input_shapes=*/false,
                                                   /*profile_memory=*/true)),
        ledger_(std::move(ledger)) {}

  // The allocator holds its lock while it calls these.
  void reportMemoryUsage(void* block, std::int64_t bytes, std::size_t, std::size_t,
                         c10::Device device) override {
    if (device.is_cpu()) return;
    if (bytes >= 0) {
      device_blocks().take(block, ledger_, current_category(), bytes);
    } else {
      device_blocks().give(block);
    }
  }

  // Throwing is safe: the allocator has changed nothing yet, and would throw without categories.
  void reportOutOfMemory(std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override {
    if (device.is_cpu()) return;
    const auto size = [](std::size_t value) {
      return format_bytes(static_cast<std::int64_t>(value));
    };
    const std::string limit = ledger_->limit() > 0
                                  ? str("which would exceed the limit of ",
                                        size(static_cast<std::size_t>(ledger_->limit())))
                                  : str("which ", device.str(), " does not have");
    throw OutOfMemoryError(out_of_memory_message(
        ledger_.get(), current_category(), bytes,
        str(limit, ": LibTorch holds ", size(reserved), " there, ", size(reserved - allocated),
            " of it unused between blocks that are in use")));
  }

  profiler::ActiveProfilerType profilerType() override {
    return profiler::ActiveProfilerType::NONE;
  }
  const Ledger* ledger() const { return ledger_.get(); }

 private:
  const std::shared_ptr<Ledger> ledger_;
};

}  // namespace

std::shared_ptr<void> report_device_memory(const std::shared_ptr<Ledger>& ledger) {
  const c10::DebugInfoKind slot = c10::DebugInfoKind::PROFILER_STATE;
  if (c10::DebugInfoBase* const existing = c10::ThreadLocalDebugInfo::get(slot)) {
    const auto* const ours = dynamic_cast<const DeviceReport*>(existing);
    if (ours == nullptr || ours->ledger() == ledger.get()) return nullptr;
  }
  return std::make_shared<c10::DebugInfoGuard>(slot, std::make_shared<DeviceReport>(ledger));
}

}  // namespace tessera::memory
