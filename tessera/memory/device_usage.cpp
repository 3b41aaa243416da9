#include "tessera/memory/device_usage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <utility>

namespace tessera::memory {
namespace {

// Through c10's interface of caching allocators: no CUDA header or library is named.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  if (device.is_cpu()) return nullptr;
  c10::Allocator* found = nullptr;
  try {
    found = c10::GetAllocator(device.type());
  } catch (const c10::Error&) {  // its way to say that there is none
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
  // With what blocks are rounded up by, as the ledger counts them.
  const auto& bytes =
      stats.allocated_bytes[static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return Usage{bytes.current, bytes.peak};
}

namespace {

// LibTorch before it had this question answers nothing.
template <class Allocator>
std::optional<std::pair<std::int64_t, std::int64_t>> free_and_total(Allocator& allocator,
                                                                    c10::DeviceIndex index) {
  if constexpr (requires { allocator.getMemoryInfo(index); }) {
    try {
      const auto [free, total] = allocator.getMemoryInfo(index);
      return std::pair{static_cast<std::int64_t>(free), static_cast<std::int64_t>(total)};
    } catch (const c10::Error&) {  // an allocator that cannot say
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

}  // namespace tessera::memory
