#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "tessera/memory/ledger.h"

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

// Returns the bytes allocated by LibTorch's caching allocator on a device; the peak is since
// reset_device_peak(). nullopt without such an allocator (the CPU, or a build without the device).
std::optional<Usage> device_usage(c10::Device device);
// Return the free memory of a device, for all processes, and its total memory, in bytes. nullopt if
// the device does not report them.
std::optional<std::int64_t> device_free(c10::Device device);
std::optional<std::int64_t> device_total(c10::Device device);
void reset_device_peak(c10::Device device);

// [Note: device memory] LibTorch's caching allocators report every block that they allocate or free
// to the profiler in the thread-local debug information. A scope that charges a device ledger
// installs itself as that profiler. Autograd copies the debug information to its own threads. The
// category is that of the allocating thread: allocations of backward are temporary unless a scope
// on that thread sets another category. Blocks are counted with the size that the allocator gives
// them (multiples of 512 bytes, up to 1 MiB more than requested).
//
// If a profiler of LibTorch is already active, it stays, and nothing is counted. Replaying a CUDA
// graph allocates nothing, so only the captured step is counted. If the allocator runs out of
// memory, the OutOfMemoryError contains the ledger.
//
// Reports to the ledger until the result is destroyed. Returns null if there is nothing to do.
std::shared_ptr<void> report_device_memory(const std::shared_ptr<Ledger>& ledger);

}  // namespace tessera::memory
