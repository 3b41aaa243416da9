#include "tessera/process/step_watchdog.h"

#include <algorithm>
#include <utility>

#include "tessera/core/median.h"
#include "tessera/core/text.h"
#include "tessera/core/units.h"

namespace tessera::process {
namespace {

constexpr std::size_t kRemembered = 100;
constexpr double kTick = 0.25;  // seconds

}  // namespace

bool StepWatchdog::exceeds(std::unique_lock<std::mutex>& lock, std::int64_t step, double limit) {
  while (watched_ < limit) {
    const auto before = Clock::now();
    const auto tick = std::chrono::duration<double>(std::min(kTick, limit - watched_));
    if (changed_.wait_for(lock, tick, [&] { return over_ || step_ != step; })) return false;
    const double passed = std::chrono::duration<double>(Clock::now() - before).count();
    watched_ += std::min(passed, 2 * kTick);
  }
  return true;
}

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
    watched_ = 0;
  }
  changed_.notify_all();
}

void StepWatchdog::end() {
  {
    const std::lock_guard lock(mutex_);
    seconds_.push_back(std::chrono::duration<double>(Clock::now() - began_).count());
    if (seconds_.size() > kRemembered) seconds_.pop_front();
    step_ = 0;
  }
  changed_.notify_all();
}

// `usual`: the median; 0 if there is none yet.
void StepWatchdog::notify(Lock& lock, const std::function<void(const std::string&)>& action,
                          double usual) {
  if (!action) return;
  const double taken = std::chrono::duration<double>(Clock::now() - began_).count();
  std::string text = str("step ", step_, " has taken ", format_time(taken));
  if (usual > 0) {
    text += str(", ", fixed(taken / usual, 0), " × the median of ", format_time(usual));
  }
  lock.unlock();
  try {
    action(text);
  } catch (...) {  // a failing callback must not end the training
  }
  lock.lock();
}

void StepWatchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    if (step_ == 0) {
      changed_.wait(lock);
      continue;
    }
    const std::int64_t step = step_;
    const bool known = seconds_.size() >= options_.enough;
    const double usual = known ? median({seconds_.begin(), seconds_.end()}) : 0;
    const double report_limit =
        known ? std::max(options_.least, options_.report_after * usual) : options_.first;
    if (!exceeds(lock, step, report_limit)) continue;
    notify(lock, actions_.report, usual);
    const double give_up_limit = std::max(options_.least_give_up, options_.give_up_after * usual);
    if (known && (step_ != step || !exceeds(lock, step, give_up_limit))) continue;
    if (known) notify(lock, actions_.give_up, usual);
    changed_.wait(lock, [&] { return over_ || step_ != step; });
  }
}

}  // namespace tessera::process
