#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::memory {

// Limits the device memory of LibTorch's caching allocator in this process while it exists. The
// limit includes unused memory between blocks, as on a smaller GPU, but not the memory of CUDA and
// NCCL (some hundred MB). 0: no limit. At most one per device.
class DeviceLimit {
 public:
  // Does nothing for the CPU, where the ledger enforces the limit. Throws UsageError that names
  // --memory-limit if this build cannot limit the device or the device does not report its memory.
  DeviceLimit(c10::Device device, std::int64_t bytes);
  ~DeviceLimit();
  DeviceLimit(const DeviceLimit&) = delete;
  DeviceLimit& operator=(const DeviceLimit&) = delete;

 private:
  const c10::Device device_;
  const bool set_;
};

}  // namespace tessera::memory
