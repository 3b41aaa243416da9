#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tessera::memory {

struct CacheCounts {
  std::int64_t in_use = 0;  // bytes of blocks in use
  std::int64_t peak = 0;    // maximum of in_use
  std::int64_t cached = 0;  // bytes kept for the next request
  std::int64_t hits = 0;    // requests served from the cache
  std::int64_t misses = 0;  // requests that went to the system
};

// [Note: block cache]
// The pages of a new large block from the system fault one by one and are zeroed by the kernel, and
// a training step frees and allocates the same sizes repeatedly. So freed blocks are kept by size
// class: multiples of 64 bytes up to 1 KiB, then 8 classes per doubling (at most 12.5% more than
// requested), above 1 MiB 32 (3.2%). Used and cached bytes together stay below 5/4 of the peak in
// use, or the peak plus 32 MiB if that is more. Beyond that, the largest cached blocks are freed.
//
// Blocks are aligned to 64 bytes. Any thread may return any block.
class BlockCache {
 public:
  static constexpr std::size_t kAlignment = 64;

  BlockCache() = default;
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // Returns the size of the block that serves a request, in bytes.
  static std::size_t block_bytes(std::size_t bytes) noexcept;

  // Returns a block, or null if the system has no memory even after the cache was freed.
  void* take(std::size_t bytes) noexcept;
  // Returns a block to the cache. `bytes` must be the requested size.
  void give(void* block, std::size_t bytes) noexcept;

  CacheCounts counts() const;
  void release_cached() noexcept;

 private:
  static constexpr std::size_t kClasses = 64 * 32;
  struct Free {
    Free* next;
  };
  static std::size_t class_of(std::size_t block) noexcept;
  // Removes blocks from the cache, the largest first, until at most `most` bytes remain.
  Free* unlink_down_to(std::int64_t most) noexcept;

  mutable std::mutex mutex_;
  std::array<Free*, kClasses> free_{};
  std::array<std::size_t, kClasses>
      bytes_{};  // size of the blocks of each class that has been used
  CacheCounts counts_;
};

}  // namespace tessera::memory
