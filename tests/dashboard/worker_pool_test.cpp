// Threads that block, and threads that replace them.

#include "tessera/dashboard/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace tessera::dashboard {
namespace {

// Blocks threads until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

TEST(WorkerPool, RunsAtMostTheActiveNumberOfTasks) {
  std::atomic<int> active{0}, most{0}, done{0};
  Gate ended;
  WorkerPool pool(3, 8, [&] {
    const int now = ++active;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
    --active;
    if (++done < 10'000) return true;
    ended.open();
    return false;
  });
  pool.begin();
  ended.pass();
  pool.end();
  EXPECT_LE(most, 3);
}

TEST(WorkerPool, ReplacesBlockedThreadsUpToTheMaximum) {
  constexpr int kMost = 6;
  std::atomic<int> waiting{0}, back{0};
  Gate all_wait, gate;
  WorkerPool* pool = nullptr;
  const auto wait = [&] {
    {
      const WorkerPool::Blocked blocked(*pool);
      if (++waiting == kMost) all_wait.open();
      gate.pass();
    }
    return ++back < kMost;
  };
  WorkerPool made(1, kMost, wait);
  pool = &made;
  made.begin();
  all_wait.pass();  // with one active slot, all six threads reach the gate
  EXPECT_EQ(back, 0);
  gate.open();
  made.end();
  EXPECT_GE(back, kMost);
}

TEST(WorkerPool, EndsWithoutBeginning) {
  WorkerPool pool(2, 4, [] { return true; });
  pool.end();
  pool.begin();  // does nothing after end()
}

}  // namespace
}  // namespace tessera::dashboard
