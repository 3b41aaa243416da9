#include "tessera/memory/device_usage.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/util/Exception.h>

#include <utility>

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

}  // namespace tessera::memory
