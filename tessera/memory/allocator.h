#pragma once

#include <cstdint>
#include <memory>

#include "tessera/memory/block_cache.h"
#include "tessera/memory/ledger.h"

namespace tessera::memory {

// Installs the counting and caching allocator for all CPU tensors of this process. Call it before
// the first tensor that should be counted. A second call does nothing. Existing tensors are freed
// by the allocator that created them.
void install();
bool installed();

// Charges the allocations of this thread to `ledger` while the scope exists. Scopes nest. A tensor
// stays charged to the ledger of its allocation until it is freed, by any thread.
class OwnerScope {
 public:
  explicit OwnerScope(std::shared_ptr<Ledger> ledger);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
  std::shared_ptr<void> report_;  // [Note: device memory]; null on the CPU
  std::shared_ptr<Ledger> previous_;
};
// Returns the ledger to which allocations of this thread are charged; null outside any scope.
std::shared_ptr<Ledger> current_ledger();

// Sets the category of allocations of this thread while the scope exists. Default: `temporary`.
class CategoryScope {
 public:
  explicit CategoryScope(MemoryCategory category);
  ~CategoryScope();
  CategoryScope(const CategoryScope&) = delete;
  CategoryScope& operator=(const CategoryScope&) = delete;

 private:
  MemoryCategory previous_;
};
MemoryCategory current_category();

// Returns the bytes charged for a tensor of `bytes`: rounded up to a multiple of 64.
constexpr std::int64_t charged_bytes(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Returns the counts of the cache of the allocator, see [Note: block cache].
CacheCounts cache_counts();

}  // namespace tessera::memory
