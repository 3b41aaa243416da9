#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tessera::memory {

struct CacheCounts {
  std::int64_t in_use = 0;  // bytes handed out, as blocks
  std::int64_t peak = 0;    // the most of them
  std::int64_t cached = 0;  // bytes kept for the next request
  std::int64_t hits = 0;    // requests served from the cache
  std::int64_t misses = 0;  // requests that went to the system
};

// [Note: block cache]
// A fresh large block from the system is pages that fault in one by one and are zeroed by the
// kernel; a training step frees and asks for the same sizes over and over. So freed blocks are kept
// by class: multiples of 64 bytes up to 1 KiB, then 8 classes per doubling (at most 12.5% more than
// asked for), above 1 MiB 32 (3.2%). What is held in all, in use and cached, stays below 5/4 of the
// most that was ever in use (and 32 MiB): beyond it the largest cached blocks go back first.
//
// Blocks are aligned to 64 bytes. Any thread may return any block.
class BlockCache {
 public:
  static constexpr std::size_t kAlignment = 64;

  BlockCache() = default;
  ~BlockCache();
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // The bytes of the block that serves a request.
  static std::size_t block_bytes(std::size_t bytes) noexcept;

  // Null where the system has no memory left even after the cache was given back.
  void* take(std::size_t bytes) noexcept;
  // `bytes` as they were asked for.
  void give(void* block, std::size_t bytes) noexcept;

  CacheCounts counts() const;
  void release_cached() noexcept;

 private:
  static constexpr std::size_t kClasses = 64 * 32;
  struct Free {
    Free* next;
  };
  static std::size_t class_of(std::size_t block) noexcept;
  // Takes blocks out of the cache until at most `most` bytes are left in it; the largest first.
  Free* unlink_down_to(std::int64_t most) noexcept;

  mutable std::mutex mutex_;
  std::array<Free*, kClasses> free_{};
  std::array<std::size_t, kClasses> bytes_{};  // of a block of each class that has been cached
  CacheCounts counts_;
};

}  // namespace tessera::memory
