#pragma once

#include <cstdint>
#include <memory>

#include "tessera/memory/block_cache.h"
#include "tessera/memory/ledger.h"

namespace tessera::memory {

// Makes every CPU tensor of this process come from the counting and caching allocator. Call it
// before the first tensor that should be counted; a second call does nothing. Tensors that are
// already there are freed by the allocator that made them.
void install();
bool installed();

// Allocations of this thread are charged to `ledger` while the scope lives. Scopes nest. A tensor
// stays charged to the ledger that it was made under, whoever frees it and whenever.
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
// Whom this thread's allocations are charged to; null outside any scope.
std::shared_ptr<Ledger> current_ledger();

// Allocations of this thread count as `category` while the scope lives; otherwise `temporary`.
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

// What a tensor of so many bytes is charged: they are rounded up to 64.
constexpr std::int64_t charged_bytes(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The cache below the allocator, see [Note: block cache].
CacheCounts cache_counts();

}  // namespace tessera::memory
