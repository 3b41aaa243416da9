#pragma once

#include <memory>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

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
