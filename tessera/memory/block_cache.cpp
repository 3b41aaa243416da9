#include "tessera/memory/block_cache.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <limits>
#include <utility>

namespace tessera::memory {
namespace {

constexpr std::int64_t kAlwaysKept = 32 << 20;
constexpr std::size_t kFineFrom = 1 << 20;
constexpr int kFineBits = 5;  // 32 classes per doubling
constexpr int kCoarseBits = 3;
constexpr std::size_t kAddressSpace = std::size_t{1} << 52;  // larger than any address space

}  // namespace

BlockCache::~BlockCache() { release_cached(); }

std::size_t BlockCache::block_bytes(std::size_t bytes) noexcept {
  const std::size_t least = std::max<std::size_t>(bytes, 1);
  if (least > std::numeric_limits<std::size_t>::max() / 2) return least;  // cannot be allocated
  std::size_t step = kAlignment;
  if (least > 1024) {
    const int bits = least > kFineFrom ? kFineBits : kCoarseBits;
    step = std::bit_floor(least - 1) >> bits;
  }
  return (least + step - 1) / step * step;
}

std::size_t BlockCache::class_of(std::size_t block) noexcept {
  // The exponent and the five bits below the leading one are distinct for all block sizes.
  const int exponent = std::bit_width(block) - 1;
  const std::size_t fraction = exponent >= kFineBits ? (block >> (exponent - kFineBits)) & 31 : 0;
  return static_cast<std::size_t>(exponent) * 32 + fraction;
}

void* BlockCache::take(std::size_t bytes) noexcept {
  const std::size_t block = block_bytes(bytes);
  if (block > kAddressSpace) return nullptr;
  const auto size = static_cast<std::int64_t>(block);
  Free* excess = nullptr;
  {
    const std::lock_guard lock(mutex_);
    counts_.in_use += size;
    const std::int64_t peak = std::max(counts_.peak, counts_.in_use);
    Free*& head = free_[class_of(block)];
    if (head != nullptr) {
      Free* const found = head;
      head = found->next;
      counts_.cached -= size;
      counts_.hits += 1;
      counts_.peak = peak;
      return found;
    }
    counts_.misses += 1;
    const std::int64_t most = std::max(peak / 4 * 5, peak + kAlwaysKept);
    excess = unlink_down_to(most - counts_.in_use);
  }
  while (excess != nullptr) std::free(std::exchange(excess, excess->next));
  void* allocated = std::aligned_alloc(kAlignment, block);
  if (allocated == nullptr) {
    release_cached();
    allocated = std::aligned_alloc(kAlignment, block);
  }
  const std::lock_guard lock(mutex_);
  if (allocated == nullptr) {
    counts_.in_use -= size;
  } else {
    counts_.peak = std::max(counts_.peak, counts_.in_use);  // a failed request does not count
  }
  return allocated;
}

void BlockCache::give(void* block, std::size_t bytes) noexcept {
  const std::size_t size = block_bytes(bytes);
  const std::size_t index = class_of(size);
  const std::lock_guard lock(mutex_);
  counts_.in_use -= static_cast<std::int64_t>(size);
  counts_.cached += static_cast<std::int64_t>(size);
  bytes_[index] = size;
  auto* const freed = static_cast<Free*>(block);
  freed->next = free_[index];
  free_[index] = freed;
}

BlockCache::Free* BlockCache::unlink_down_to(std::int64_t most) noexcept {
  Free* out = nullptr;
  for (std::size_t index = kClasses; index-- > 0 && counts_.cached > most;) {
    while (free_[index] != nullptr && counts_.cached > most) {
      Free* const block = free_[index];
      free_[index] = block->next;
      block->next = out;
      out = block;
      counts_.cached -= static_cast<std::int64_t>(bytes_[index]);
    }
  }
  return out;
}

CacheCounts BlockCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void BlockCache::release_cached() noexcept {
  Free* all = nullptr;
  {
    const std::lock_guard lock(mutex_);
    all = unlink_down_to(0);
  }
  while (all != nullptr) std::free(std::exchange(all, all->next));
}

}  // namespace tessera::memory
