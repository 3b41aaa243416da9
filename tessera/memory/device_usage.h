#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

// Returns the bytes allocated by LibTorch's caching allocator on a device; the peak is since
// reset_device_peak(). nullopt without such an allocator (the CPU, or a build without the device).
std::optional<Usage> device_usage(c10::Device device);
// Return the free memory of a device, for all processes, and its total memory, in bytes. nullopt if
// the device does not report them.
std::optional<std::int64_t> device_free(c10::Device device);
std::optional<std::int64_t> device_total(c10::Device device);
void reset_device_peak(c10::Device device);

}  // namespace tessera::memory
