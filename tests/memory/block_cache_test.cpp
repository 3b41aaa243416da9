#include "tessera/memory/block_cache.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/sanitized.h"

namespace tessera::memory {
namespace {

TEST(BlockCache, SizeClassesWasteLittle) {
  std::mt19937_64 random(1);
  std::size_t previous = 0;
  for (std::size_t bytes = 1; bytes < (std::size_t{1} << 40);
       bytes += 1 + random() % (1 + bytes / 50)) {
    const std::size_t block = BlockCache::block_bytes(bytes);
    ASSERT_GE(block, bytes);
    ASSERT_EQ(block % BlockCache::kAlignment, 0u);
    ASSERT_EQ(BlockCache::block_bytes(block), block) << "a block size is its own class";
    ASSERT_GE(block, previous) << "monotonic";
    const double most = bytes <= 1024 ? 64 : 0.125 * static_cast<double>(bytes) + 1;
    ASSERT_LE(static_cast<double>(block - bytes), most) << bytes;
    if (bytes > (2 << 20)) {
      ASSERT_LE(static_cast<double>(block), 1.032 * static_cast<double>(bytes));
    }
    previous = block;
  }
}

TEST(BlockCache, ReusesBlocksOfTheSameClass) {
  BlockCache cache;
  for (const std::size_t bytes : {1ul, 64ul, 1000ul, 5000ul, 1ul << 20, 3ul << 20}) {
    void* const first = cache.take(bytes);
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % BlockCache::kAlignment, 0u);
    std::memset(first, 7, bytes);
    cache.give(first, bytes);
    void* const second = cache.take(bytes);
    EXPECT_EQ(second, first);
    cache.give(second, bytes);
  }
  EXPECT_EQ(cache.counts().hits, 7);  // 1 and 64 bytes are one class
  EXPECT_EQ(cache.counts().in_use, 0);
  EXPECT_GT(cache.counts().cached, 4 << 20);
  cache.release_cached();
  EXPECT_EQ(cache.counts().cached, 0);
}

TEST(BlockCache, BoundsTheCacheByThePeakInUse) {
  BlockCache cache;
  constexpr std::int64_t kMiB = 1 << 20;
  // 200 MiB of one size, then the same amount of sizes that are never reused.
  std::vector<std::pair<void*, std::size_t>> blocks;
  for (int i = 0; i < 50; ++i) blocks.emplace_back(cache.take(4 * kMiB), 4 * kMiB);
  for (const auto& [block, bytes] : blocks) cache.give(block, bytes);
  for (std::size_t bytes = kMiB; bytes < 100 * kMiB; bytes += bytes / 9) {
    cache.give(cache.take(bytes), bytes);
    const CacheCounts counts = cache.counts();
    EXPECT_LE(counts.in_use + counts.cached, counts.peak / 4 * 5 + 32 * kMiB);
  }
}

TEST(BlockCache, ReturnsNullForImpossibleSizes) {
  BlockCache cache;
  EXPECT_EQ(cache.take(~std::size_t{0}), nullptr);
  EXPECT_EQ(cache.take(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(cache.counts().in_use, 0);
}

// The size of the cache depends on the peak in use. If failed requests counted, the cache would be
// unbounded afterwards.
TEST(BlockCache, FailedRequestsDoNotRaiseThePeak) {
  if (tessera::testing::kSanitized) GTEST_SKIP() << "sanitizers abort on a failed allocation";
  BlockCache cache;
  cache.give(cache.take(1 << 20), 1 << 20);
  const std::int64_t peak = cache.counts().peak;
  ASSERT_EQ(cache.take(std::size_t{1} << 51), nullptr);  // more than a process can address
  EXPECT_EQ(cache.counts().in_use, 0);
  EXPECT_EQ(cache.counts().peak, peak);
}

TEST(BlockCache, ThreadsExchangeBlocks) {
  BlockCache cache;
  std::mutex mutex;
  std::vector<std::pair<unsigned char*, std::size_t>> shared;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int i = 0; i < 2000; ++i) {
        const std::size_t bytes = 1 + random() % 20'000;
        auto* const block = static_cast<unsigned char*>(cache.take(bytes));
        block[0] = block[bytes - 1] = static_cast<unsigned char>(bytes);
        std::pair<unsigned char*, std::size_t> other{nullptr, 0};
        {
          const std::lock_guard lock(mutex);
          shared.emplace_back(block, bytes);
          std::swap(shared[random() % shared.size()], shared.back());
          if (shared.size() > 20) {
            other = shared.back();
            shared.pop_back();
          }
        }
        if (other.first == nullptr) continue;
        EXPECT_EQ(other.first[0], static_cast<unsigned char>(other.second));
        EXPECT_EQ(other.first[other.second - 1], static_cast<unsigned char>(other.second));
        cache.give(other.first, other.second);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [block, bytes] : shared) cache.give(block, bytes);
  EXPECT_EQ(cache.counts().in_use, 0);
  EXPECT_EQ(cache.counts().hits + cache.counts().misses, 8000);
}

}  // namespace
}  // namespace tessera::memory
