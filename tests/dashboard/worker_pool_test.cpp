// Threads that step aside while they wait, and those that take their places.

#include "tessera/dashboard/crew.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>

namespace tessera::dashboard {
namespace {

// What threads wait at until it is opened.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    opened_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

TEST(Crew, NeverMoreAtWorkThanThereArePlaces) {
  std::atomic<int> at_work{0}, most{0}, done{0};
  Gate ended;
  Crew crew(3, 8, [&] {
    const int now = ++at_work;
    for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
    --at_work;
    if (++done < 10'000) return true;
    ended.open();
    return false;
  });
  crew.begin();
  ended.pass();
  crew.end();
  EXPECT_LE(most, 3);
}

TEST(Crew, WhoWaitsIsReplacedUntilThereAreNoMore) {
  constexpr int kMost = 6;
  std::atomic<int> waiting{0}, back{0};
  Gate all_wait, gate;
  Crew* crew = nullptr;
  const auto wait = [&] {
    {
      const Crew::Aside aside(*crew);
      if (++waiting == kMost) all_wait.open();
      gate.pass();
    }
    return ++back < kMost;
  };
  Crew made(1, kMost, wait);
  crew = &made;
  made.begin();
  all_wait.pass();  // with one place, all six got to where they wait
  EXPECT_EQ(back, 0);
  gate.open();
  made.end();
  EXPECT_GE(back, kMost);
}

TEST(Crew, EndsWithoutHavingBegun) {
  Crew crew(2, 4, [] { return true; });
  crew.end();
  crew.begin();  // nothing any more
}

}  // namespace
}  // namespace tessera::dashboard
