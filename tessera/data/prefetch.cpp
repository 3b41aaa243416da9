#include "tessera/data/prefetch.h"

#include <utility>

namespace tessera::data {

Prefetch::Prefetch(Make make, std::uint64_t samples_per_step, std::size_t ahead)
    : make_(std::move(make)), samples_per_step_(samples_per_step), ahead_(ahead) {}

Prefetch::~Prefetch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Prefetch::Ready Prefetch::prepare(std::uint64_t first) const {
  Ready out;
  out.first = first;
  out.step.begin = std::chrono::steady_clock::now();
  try {
    out.step.batches = make_(first);
  } catch (...) {
    out.problem = std::current_exception();
  }
  out.step.end = std::chrono::steady_clock::now();
  return out;
}

void Prefetch::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || (!failed_ && ready_.size() < ahead_); });
    if (stop_) return;
    const std::uint64_t order = order_, first = next_;
    lock.unlock();
    Ready made = prepare(first);
    lock.lock();
    if (order != order_) continue;  // somebody wants another
    failed_ = made.problem != nullptr;
    next_ = first + samples_per_step_;
    ready_.push_back(std::move(made));
    changed_.notify_all();
  }
}

Prefetch::Step Prefetch::take(std::uint64_t first) {
  Ready got;
  if (ahead_ == 0) {
    got = prepare(first);
  } else {
    std::unique_lock lock(mutex_);
    const std::uint64_t comes = ready_.empty() ? next_ : ready_.front().first;
    if (!thread_.joinable() || comes != first || (failed_ && ready_.empty())) {
      ready_.clear();
      next_ = first;
      ++order_;
      failed_ = false;
      if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      changed_.notify_all();
    }
    changed_.wait(lock, [this] { return !ready_.empty(); });
    got = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
  }
  if (got.problem) std::rethrow_exception(got.problem);
  return std::move(got.step);
}

}  // namespace tessera::data
