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
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

// [Note: prefetch] A thread prepares the data of the next steps while one is computed. It begins
// with the first step that is taken, goes on by the samples of a step, and never has more than
// `ahead` steps ready. Whoever takes another step than the next one (after a resumption, say) gets
// that, and the thread goes on from there. What goes wrong is thrown by take(), for the step that
// it belongs to.
class Prefetch {
 public:
  // All micro-batches of this rank for the step whose first sample has this number.
  using Make = std::function<std::vector<Batch>(std::uint64_t first)>;
  using Time = std::chrono::steady_clock::time_point;

  // ahead 0: no thread, take() prepares.
  Prefetch(Make make, std::uint64_t samples_per_step, std::size_t ahead);
  ~Prefetch();  // waits for the step that is being prepared
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  struct Step {
    std::vector<Batch> batches;
    Time begin, end;  // of its preparation
  };
  Step take(std::uint64_t first);  // by one thread

 private:
  struct Ready {
    std::uint64_t first = 0;
    Step step;
    std::exception_ptr problem;
  };
  void work();
  Ready prepare(std::uint64_t first) const;

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
