#include "tessera/memory/device_memory.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::memory {

DeviceLimit::DeviceLimit(c10::Device device, std::int64_t bytes)
    : device_(device), set_(!device.is_cpu() && bytes > 0) {
  if (!set_) return;
  at::empty({1}, at::device(device));  // initializes the device; its memory is unknown before
  const auto total = device_total(device);
  if (!total) {
    throw UsageError(Flag("memory-limit"),
                     str(device.str(), " does not report how much memory it has"));
  }
  // A limit above the total has no effect.
  const double share = static_cast<double>(bytes) / static_cast<double>(*total);
  c10::cuda::CUDACachingAllocator::setMemoryFraction(share < 1 ? share : 1.0, device.index());
}

DeviceLimit::~DeviceLimit() {
  if (!set_) return;
  try {
    c10::cuda::CUDACachingAllocator::setMemoryFraction(1.0, device_.index());
  } catch (...) {  // a device that has failed
  }
}

}  // namespace tessera::memory
