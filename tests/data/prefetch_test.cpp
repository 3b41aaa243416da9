#include "tessera/data/prefetch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/core/errors.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

using Data = std::vector<std::uint64_t>;
using Numbers = Prefetch<Data>;
Data batch_of(std::uint64_t first) { return {first}; }
std::uint64_t number(const Numbers::Step& step) { return step.data.at(0); }

TEST(Prefetch, ReturnsStepsInOrder) {
  for (const std::size_t ahead : {0, 1, 2, 5}) {
    Numbers data(batch_of, 8, ahead);
    for (std::uint64_t step = 0; step < 50; ++step)
      EXPECT_EQ(number(data.take(8 * step)), 8 * step);
    // Backward, and on from another number, as after a resume with another batch size.
    for (std::uint64_t step = 0; step < 20; ++step) {
      EXPECT_EQ(number(data.take(80 + 8 * step)), 80 + 8 * step);
    }
    EXPECT_EQ(number(data.take(3)), 3u);
    EXPECT_EQ(number(data.take(11)), 11u);
  }
}

// It prepares exactly `ahead` steps.
TEST(Prefetch, PreparesAtMostAheadSteps) {
  constexpr std::size_t kAhead = 3;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t most = 0;
  Numbers data(
      [&](std::uint64_t first) {
        const std::lock_guard lock(mutex);
        most = std::max(most, first);
        changed.notify_all();
        return batch_of(first);
      },
      1, kAhead);
  for (std::uint64_t step = 0; step < 20; ++step) {
    data.take(step);
    std::unique_lock lock(mutex);
    // Eventually all allowed steps are prepared.
    EXPECT_TRUE(
        changed.wait_for(lock, std::chrono::seconds(60), [&] { return most >= step + kAhead; }));
    EXPECT_EQ(most, step + kAhead);
  }
}

// An error is thrown for its step, after the steps before it.
TEST(Prefetch, ThrowsErrorsForTheirStep) {
  for (const std::size_t ahead : {0, 1, 4}) {
    std::atomic<bool> bad{true};
    Numbers data(
        [&](std::uint64_t first) {
          if (first == 3 && bad) throw DataError("document 7 is broken");
          return batch_of(first);
        },
        1, ahead);
    for (std::uint64_t step = 0; step < 3; ++step) EXPECT_EQ(number(data.take(step)), step);
    EXPECT_EQ(error_of([&] { data.take(3); }), "document 7 is broken");
    EXPECT_THROW(data.take(3), DataError);
    bad = false;
    EXPECT_EQ(number(data.take(3)), 3u);
    EXPECT_EQ(number(data.take(4)), 4u);
  }
}

TEST(Prefetch, CanBeDestroyedWhileBusy) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> running{0};
    {
      Numbers data(
          [&](std::uint64_t first) {
            ++running;
            auto out = batch_of(first);
            --running;
            return out;
          },
          1, 4);
      if (round % 2 == 0) data.take(0);
    }
    EXPECT_EQ(running, 0);
  }
}

}  // namespace
}  // namespace tessera::data
