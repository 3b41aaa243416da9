#pragma once

#include <memory>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

// [Note: device memory] LibTorch's caching allocators tell every block that they hand out or take
// back to whoever stands in the thread's debug information as its profiler. We stand there for the
// time of a scope that charges a ledger of a device. Autograd takes this information along to its
// own threads; the category is that of the thread that asks: what backward allocates is temporary
// unless a scope around it says otherwise. Blocks count as large as the allocator makes them
// (multiples of 512 bytes, and up to 1 MiB more).
//
// Where a profiler of LibTorch runs already it stays, and nothing is counted. A CUDA graph that is
// replayed allocates nothing: what counts is the step that was captured. Where the allocator has
// nothing left, the OutOfMemoryError has the ledger in it.
//
// Lasts as long as the result; null where nothing had to be done.
std::shared_ptr<void> report_device_memory(const std::shared_ptr<Ledger>& ledger);

}  // namespace tessera::memory
