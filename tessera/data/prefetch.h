#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::data {

// [Note: prefetch] A thread prepares the data of the next steps while one is computed. It begins
// with the first step that is taken, goes on by the samples of a step, and never has more than
// `ahead` steps ready. Whoever takes another step than the next one (after a resumption, say) gets
// that, and the thread goes on from there. What goes wrong is thrown by take(), for the step that
// it belongs to.
template <typename Data>
class Prefetch {
 public:
  // What this rank needs for the step whose first sample has this number.
  using Make = std::function<Data(std::uint64_t first)>;
  using Time = std::chrono::steady_clock::time_point;

  // ahead 0: no thread, take() prepares.
  Prefetch(Make make, std::uint64_t samples_per_step, std::size_t ahead)
      : make_(std::move(make)), samples_per_step_(samples_per_step), ahead_(ahead) {}
  // Waits for the step that is being prepared.
  ~Prefetch() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  struct Step {
    Data data{};
    Time begin, end;  // of its preparation
  };
  // By one thread.
  Step take(std::uint64_t first) {
    Ready got = ahead_ == 0 ? prepare(first) : wait_for(first);
    if (got.problem) std::rethrow_exception(got.problem);
    return std::move(got.step);
  }

 private:
  struct Ready {
    std::uint64_t first = 0;
    Step step;
    std::exception_ptr problem;
  };

  Ready prepare(std::uint64_t first) const {
    Ready out;
    out.first = first;
    out.step.begin = std::chrono::steady_clock::now();
    try {
      out.step.data = make_(first);
    } catch (...) {
      out.problem = std::current_exception();
    }
    out.step.end = std::chrono::steady_clock::now();
    return out;
  }

  Ready wait_for(std::uint64_t first) {
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
    Ready got = std::move(ready_.front());
    ready_.pop_front();
    changed_.notify_all();
    return got;
  }

  void work() {
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

  const Make make_;
  const std::uint64_t samples_per_step_;
  const std::size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Ready> ready_;
  std::uint64_t next_ = 0;   // to be prepared
  std::uint64_t order_ = 0;  // counts the changes of next_ by take()
  bool failed_ = false;      // nothing is prepared until take() says where to go on
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::data
