#include "tessera/dashboard/crew.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace tessera::dashboard {

Crew::Crew(int at_work, int most, std::function<bool()> work)
    : at_work_(std::max(1, at_work)), most_(std::max(1, most)), work_(std::move(work)) {}

Crew::~Crew() { end(); }

void Crew::begin() {
  const std::lock_guard lock(mutex_);
  while (!over_ && static_cast<int>(threads_.size()) < std::min(at_work_, most_)) {
    threads_.emplace_back([this] { live(); });
  }
}

void Crew::end() {
  std::vector<std::thread> all;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
    free_.notify_all();
    all.swap(threads_);  // nobody adds to it any more
  }
  for (std::thread& thread : all) thread.join();
}

void Crew::live() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++spare_;
    free_.wait(lock, [&] { return over_ || working_ < at_work_; });
    --spare_;
    if (over_) return;
    ++working_;
    bool goes_on = true;
    while (goes_on && !over_ && working_ <= at_work_) {
      lock.unlock();
      goes_on = work_();
      lock.lock();
    }
    --working_;
    if (!goes_on) {
      over_ = true;
      free_.notify_all();
    }
  }
}

// Called with the lock. Those that were called already still count as spare, and their places as
// free.
void Crew::fill_places() {
  const int places = at_work_ - working_;
  if (over_ || places <= 0) return;
  if (spare_ >= places) {
    free_.notify_one();
  } else if (static_cast<int>(threads_.size()) < most_) {
    try {
      threads_.emplace_back([this] { live(); });
    } catch (const std::system_error&) {
      // No more are to be had: those that are there go on when they have waited.
    }
  }
}

void Crew::step_aside() {
  const std::lock_guard lock(mutex_);
  --working_;
  fill_places();
}

void Crew::come_back() {
  const std::lock_guard lock(mutex_);
  ++working_;
}

}  // namespace tessera::dashboard
