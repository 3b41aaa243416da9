#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

// What LibTorch's own caching allocator has handed out on a device since reset_device_peak(); no
// value where the device has none (the CPU, or a build without that device).
std::optional<Usage> device_usage(c10::Device device);
// Bytes that are free on a device, for all processes, and those that it has; no value where it does
// not say.
std::optional<std::int64_t> device_free(c10::Device device);
std::optional<std::int64_t> device_total(c10::Device device);
void reset_device_peak(c10::Device device);

}  // namespace tessera::memory
