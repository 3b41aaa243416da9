#include "tessera/train/step_watchdog.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tessera/core/text.h"
#include "tessera/core/units.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

StepWatchdog::StepWatchdog(Options options, Actions actions)
    : options_(options), actions_(std::move(actions)), thread_([this] { watch(); }) {}

StepWatchdog::~StepWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepWatchdog::begin(std::int64_t step) {
  {
    const std::lock_guard lock(mutex_);
    step_ = step;
    began_ = Clock::now();
  }
  changed_.notify_all();
}

void StepWatchdog::end() {
  {
    const std::lock_guard lock(mutex_);
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - began_).count());
    step_ = 0;
  }
  changed_.notify_all();
}

void StepWatchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (step_ == 0 || seconds_.size() < options_.enough) {
      changed_.wait(lock);
      continue;
    }
    const std::int64_t step = step_;
    const double usual = median(seconds_);
    // Until the step is over, or has taken so many times the median.
    const auto lasts = [&](double times) {
      const double limit = std::max(options_.least, times * usual);
      const auto until = began_ + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(limit));
      return !changed_.wait_until(lock, until, [&] { return over_ || step_ != step; });
    };
    const auto tell = [&](const std::function<void(const std::string&)>& action) {
      if (!action) return;
      const double taken = std::chrono::duration<double>(Clock::now() - began_).count();
      char factor[32];
      std::snprintf(factor, sizeof factor, "%.0f", taken / usual);
      lock.unlock();
      action(str("step ", step, " has taken ", format_time(taken), ", ", factor,
                 " × the median of ", format_time(usual)));
      lock.lock();
    };
    if (!lasts(options_.report_after)) continue;
    tell(actions_.report);
    if (!lasts(options_.give_up_after)) continue;
    tell(actions_.give_up);
    changed_.wait(lock, [&] { return over_ || step_ != step; });
  }
}

}  // namespace tessera::train
