#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace tessera::memory {

// While it lives, LibTorch's caching allocator of this process holds at most so many bytes of the
// device, with what lies unused between its blocks: as on a card that has no more. What CUDA itself
// and NCCL take (some hundred MB) is not among them. 0: no limit. One at a time for a device.
class DeviceLimit {
 public:
  // Nothing for the CPU, whose ledger keeps the limit. Throws UsageError that names --memory-limit
  // where this build cannot, and where the device has less.
  DeviceLimit(c10::Device device, std::int64_t bytes);
  ~DeviceLimit();
  DeviceLimit(const DeviceLimit&) = delete;
  DeviceLimit& operator=(const DeviceLimit&) = delete;

 private:
  const c10::Device device_;
  const bool set_;
};

}  // namespace tessera::memory
