#include "tessera/dashboard/worker_pool.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace tessera::dashboard {

WorkerPool::WorkerPool(int active, int most, std::function<bool()> work)
    : active_(std::max(1, active)), most_(std::max(1, most)), work_(std::move(work)) {}

WorkerPool::~WorkerPool() { end(); }

void WorkerPool::begin() {
  const std::lock_guard lock(mutex_);
  while (!over_ && static_cast<int>(threads_.size()) < std::min(active_, most_)) {
    threads_.emplace_back([this] { run_thread(); });
  }
}

void WorkerPool::end() {
  std::vector<std::thread> all;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    free_.notify_all();
    all.swap(threads_);  // over_ is set: no thread is added any more
  }
  for (std::thread& thread : all) thread.join();
}

void WorkerPool::run_thread() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++spare_;
    free_.wait(lock, [&] { return over_ || working_ < active_; });
    --spare_;
    if (over_) return;
    ++working_;
    bool continues = true;
    while (continues && !over_ && working_ <= active_) {
      lock.unlock();
      continues = work_();
      lock.lock();
    }
    --working_;
    if (!continues) {
      over_ = true;
      free_.notify_all();
    }
  }
}

// Called with the lock held. Threads that were notified but have not run yet still count as spare,
// and their slots as free.
void WorkerPool::fill_slots() {
  const int slots = active_ - working_;
  if (over_ || slots <= 0) return;
  if (spare_ >= slots) {
    free_.notify_one();
  } else if (static_cast<int>(threads_.size()) < most_) {
    try {
      threads_.emplace_back([this] { run_thread(); });
    } catch (const std::system_error&) {
      // No thread can be created: the existing ones continue when they return from blocking.
    }
  }
}

void WorkerPool::begin_blocking() {
  const std::lock_guard lock(mutex_);
  --working_;
  fill_slots();
}

void WorkerPool::end_blocking() {
  const std::lock_guard lock(mutex_);
  ++working_;
}

}  // namespace tessera::dashboard
