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

// [Note: prefetch] A thread prepares the data of later steps while one is computed. It starts at
// the first step that is taken, advances by the samples of a step, and keeps at most `ahead` steps
// ready. If take() asks for another step than the next one (after a resume, for example), it gets
// that step and the thread continues from there. Errors are thrown by take() for the step they
// belong to.
template <typename Data>
class Prefetch {
 public:
  // Returns this rank's data of the step whose first sample has this number.
  using Make = std::function<Data(std::uint64_t first)>;
  using Time = std::chrono::steady_clock::time_point;

  // ahead 0: no thread; take() prepares the data itself.
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
  // Returns the data of a step. Must be called from one thread only.
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
    const std::uint64_t upcoming = ready_.empty() ? next_ : ready_.front().first;
    if (!thread_.joinable() || upcoming != first || (failed_ && ready_.empty())) {
      ready_.clear();
      next_ = first;
      ++generation_;
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
      const std::uint64_t generation = generation_, first = next_;
      lock.unlock();
      Ready made = prepare(first);
      lock.lock();
      if (generation != generation_) continue;  // take() asked for another step
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
  std::uint64_t next_ = 0;        // first sample of the next step to prepare
  std::uint64_t generation_ = 0;  // number of times take() changed next_
  bool failed_ = false;           // preparation stopped until the next take()
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tessera::data
