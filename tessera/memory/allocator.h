#pragma once

#include <cstdint>
#include <memory>

#include "tessera/memory/ledger.h"

namespace tessera::memory {

// Makes every CPU tensor of this process come from the counting and caching allocator. Call it
// before the first tensor that should be counted; a second call does nothing. Tensors that are
// already there are freed by the allocator that made them.
void install();
bool installed();

// Allocations of this thread are charged to `ledger` while the scope lives. Scopes nest.
class OwnerScope {
 public:
  explicit OwnerScope(std::shared_ptr<Ledger> ledger);
  ~OwnerScope();
  OwnerScope(const OwnerScope&) = delete;
  OwnerScope& operator=(const OwnerScope&) = delete;

 private:
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

// Freed blocks that the allocator keeps for the next allocation of that size.
std::int64_t cached_bytes();
void release_cached();

}  // namespace tessera::memory
