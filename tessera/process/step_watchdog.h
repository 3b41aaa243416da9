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

// Detects hanging steps on its own thread. A step that takes many times the usual duration is
// reported while it hangs, and given up if it continues to hang.
class StepWatchdog {
 public:
  struct Options {
    double report_after = 10;   // multiple of the median step duration
    double give_up_after = 40;  // multiple of the median step duration
    double least = 2;           // seconds; minimum duration before a report
    double least_give_up = 60;  // seconds; minimum duration before giving up
    std::size_t enough = 5;     // steps needed for a median
    double first = 60;          // seconds until a report before there is a median
  };
  // Called on the watchdog thread with text such as "step 57 has taken 3.1 s, 11 × the median".
  // Steps before there is a median are only reported, since their usual duration is unknown.
  struct Actions {
    std::function<void(const std::string&)> report;   // once per step
    std::function<void(const std::string&)> give_up;  // after the report; may be null
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
  void notify(Lock& lock, const std::function<void(const std::string&)>& action, double usual);

  // Waits until `step` has run for `limit` seconds. Returns false if it ended before.
  // [Note: watched time] Only time in which this thread ran counts, so a process that was stopped
  // does not count as hanging.
  bool exceeds(std::unique_lock<std::mutex>& lock, std::int64_t step, double limit);

  const Options options_;
  const Actions actions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<double> seconds_;  // durations of the last steps
  std::int64_t step_ = 0;       // current step; 0: none
  Clock::time_point began_;
  double watched_ = 0;  // seconds of the current step, see [Note: watched time]
  bool over_ = false;
  std::thread thread_;
};

}  // namespace tessera::process
