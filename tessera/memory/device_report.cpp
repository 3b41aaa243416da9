#include "tessera/memory/device_report.h"

#include <c10/core/Allocator.h>
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
