#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera::process {

// Watches the steps of a run from a thread of its own: one that takes many times as long as usual
// is told of while it hangs, and given up if it goes on hanging.
class StepWatchdog {
 public:
  struct Options {
    double report_after = 10;  // times the median of the steps so far
    double give_up_after = 40;
    double least = 2;           // seconds; nothing shorter is worth a report
    double least_give_up = 60;  // nor this worth giving up
    std::size_t enough = 5;     // steps before there is a median
    double first = 60;          // seconds after which a step before that is told of
  };
  // Both are called from the watching thread, with "step 57 has taken 3.1 s, 11 × the median". One
  // of the first steps is only told of: nobody knows how long they should take.
  struct Actions {
    std::function<void(const std::string&)> report;   // once for a step
    std::function<void(const std::string&)> give_up;  // after that; may be null
  };
  StepWatchdog(Options options, Actions actions);
  ~StepWatchdog();
  StepWatchdog(const StepWatchdog&) = delete;
  StepWatchdog& operator=(const StepWatchdog&) = delete;

  void begin(std::int64_t step);
  void end();

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  using Lock = std::unique_lock<std::mutex>;
  void tell(Lock& lock, const std::function<void(const std::string&)>& action, double usual);

  // Waits until the step has been watched for so long, or is over: false then. [Note: watched time]
  // Only time in which this thread ran counts, so a process that was stopped does not hang.
  bool lasts(std::unique_lock<std::mutex>& lock, std::int64_t step, double limit);

  const Options options_;
  const Actions actions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<double> seconds_;  // of the last steps
  std::int64_t step_ = 0;       // under way; 0: none
  Clock::time_point began_;
  double watched_ = 0;  // seconds of the step under way
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tessera::process
