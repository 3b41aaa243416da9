#include "tessera/memory/ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/memory/device_blocks.h"

namespace tessera::memory {
namespace {

using Category = MemoryCategory;

TEST(Ledger, CountsByCategoryAndInTotal) {
  Ledger ledger;
  ledger.charge(Category::params, 100);
  ledger.charge(Category::grads, 50);
  ledger.charge(Category::params, 20);
  ledger.release(Category::params, 100);
  ledger.charge(Category::activations, 10);
  const LedgerCounts counts = ledger.counts();
  EXPECT_EQ(counts[Category::params].now, 20);
  EXPECT_EQ(counts[Category::params].peak, 120);
  EXPECT_EQ(counts[Category::grads].now, 50);
  EXPECT_EQ(counts[Category::activations].now, 10);
  EXPECT_EQ(counts[Category::optimizer].peak, 0);
  EXPECT_EQ(counts.total.now, 80);
  EXPECT_EQ(counts.total.peak, 170);  // of the sum: not 120 + 50 + 10
}

TEST(Ledger, ResetPeakSetsPeaksToTheBytesInUse) {
  Ledger ledger;
  ledger.charge(Category::temporary, 100);
  ledger.release(Category::temporary, 70);
  ledger.reset_peak();
  EXPECT_EQ(ledger.counts()[Category::temporary].peak, 30);
  EXPECT_EQ(ledger.counts().total.peak, 30);
  ledger.charge(Category::grads, 5);
  EXPECT_EQ(ledger.counts().total.peak, 35);
}

TEST(Ledger, CountsExactlyWithManyThreads) {
  Ledger ledger;
  std::vector<std::thread> threads;
  constexpr int kThreads = 4, kRounds = 20'000;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ledger, t] {
      const auto category = static_cast<Category>(t % 3);
      for (int i = 1; i <= kRounds; ++i) {
        ledger.charge(category, i);
        if (i % 2 == 0) ledger.release(category, i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::int64_t odd = std::int64_t{kRounds / 2} * (kRounds / 2);  // 1 + 3 + 5 + …
  const LedgerCounts counts = ledger.counts();
  EXPECT_EQ(counts.total.now, kThreads * odd);
  EXPECT_EQ(counts.categories[0].now, 2 * odd);  // threads 0 and 3
  EXPECT_EQ(counts.categories[1].now, odd);
  EXPECT_GE(counts.total.peak, counts.total.now);
}

TEST(Ledger, ChargesNothingBeyondTheLimit) {
  Ledger ledger("rank 3", 1000);
  ledger.charge(Category::params, 900);
  ledger.charge(Category::grads, 100);  // exactly the limit
  try {
    ledger.charge(Category::activations, 1);
    FAIL();
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    for (const char* part : {"rank 3", "activations", "limit", "params", "900 B", "--zero",
                             "--recompute", "micro-batch", "--memory-limit"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
  }
  EXPECT_EQ(ledger.counts().total.now, 1000);
  EXPECT_EQ(ledger.counts().total.peak, 1000);
  EXPECT_EQ(ledger.counts()[Category::activations].peak, 0);
  ledger.release(Category::params, 1);
  EXPECT_NO_THROW(ledger.charge(Category::activations, 1));
  EXPECT_THROW(Ledger("x", -1), UsageError);
}

TEST(Ledger, FailedChargesDoNotAffectOtherThreads) {
  Ledger ledger("rank 3", 1000);
  std::atomic<bool> over{false};
  std::thread greedy([&] {
    while (!over.load()) EXPECT_THROW(ledger.charge(Category::params, 1001), OutOfMemoryError);
  });
  int refused = 0;
  for (int i = 0; i < 200'000; ++i) {
    try {
      ledger.charge(Category::grads, 1);
      ledger.release(Category::grads, 1);
    } catch (const OutOfMemoryError&) {
      ++refused;
    }
  }
  over.store(true);
  greedy.join();
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(ledger.counts().total.now, 0);
}

TEST(Ledger, NoteIgnoresTheLimit) {
  Ledger ledger("rank 3", 1000, CountedMemory::device);
  ledger.note(Category::params, 900);
  ledger.note(Category::grads, 200);
  ledger.release(Category::params, 900);
  EXPECT_EQ(ledger.counts().total.now, 200);
  EXPECT_EQ(ledger.counts().total.peak, 1100);
  EXPECT_EQ(ledger.counts()[Category::params].peak, 900);
}

TEST(Ledger, RecordsTheBytesInUseOverTime) {
  Ledger ledger;
  ledger.charge(Category::params, 100);
  EXPECT_TRUE(ledger.stop_recording().empty());  // nothing was recorded
  ledger.start_recording();
  ledger.charge(Category::activations, 30);
  ledger.note(Category::temporary, 7);
  ledger.release(Category::activations, 30);
  const std::vector<MemoryPoint> points = ledger.stop_recording();
  ledger.charge(Category::params, 1000);  // no longer recorded
  ASSERT_GE(points.size(), 3U);
  const auto of = [](const MemoryPoint& point, Category category) {
    return point.bytes[static_cast<std::size_t>(category)];
  };
  EXPECT_EQ(of(points.front(), Category::params), 100);
  EXPECT_EQ(points.front().total(), 100);
  EXPECT_EQ(of(points.back(), Category::temporary), 7);
  EXPECT_EQ(points.back().total(), 107);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(of(points[i], Category::params), 100);
    most = std::max(most, points[i].total());
    EXPECT_GE(points[i].time, points[i > 0 ? i - 1 : 0].time);
  }
  EXPECT_EQ(most, 137);
}

TEST(Ledger, ARecordingHasABoundedNumberOfPointsAndTheExactMaximum) {
  Ledger ledger;
  ledger.start_recording();
  for (int i = 0; i < 200'000; ++i) {
    const std::int64_t bytes = i == 77'777 ? 1'000'000 : i % 100 + 1;
    ledger.charge(Category::temporary, bytes);
    ledger.release(Category::temporary, bytes);
  }
  ledger.charge(Category::grads, 3);
  const std::vector<MemoryPoint> points = ledger.stop_recording();
  EXPECT_LE(points.size(), Ledger::kMostPoints);
  EXPECT_GT(points.size(), Ledger::kMostPoints / 8);
  std::int64_t most = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    most = std::max(most, points[i].total());
    EXPECT_GE(points[i].time, points[i > 0 ? i - 1 : 0].time);
  }
  EXPECT_EQ(most, 1'000'000);
  EXPECT_EQ(points.back().total(), 3);
  ledger.start_recording();  // forgets the first recording
  EXPECT_EQ(ledger.stop_recording().size(), 2U);
}

TEST(Ledger, RecordsThreadsThatRunBeside) {
  Ledger ledger;
  ledger.start_recording();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ledger] {
      for (int i = 0; i < 5000; ++i) {
        ledger.charge(Category::grads, 8);
        ledger.release(Category::grads, 8);
      }
      ledger.charge(Category::params, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<MemoryPoint> points = ledger.stop_recording();
  EXPECT_EQ(points.back().total(), 4);
  for (const MemoryPoint& point : points) {
    EXPECT_GE(point.total(), 0);
    EXPECT_LE(point.total(), 4 * 8 + 4);
  }
}

TEST(DeviceBlocks, AllowsAnyThreadToFree) {
  DeviceBlocks blocks;
  const auto ledger = std::make_shared<Ledger>("r", 0, CountedMemory::device);
  constexpr int kThreads = 4, kBlocks = 2000;
  static std::array<char, kThreads * kBlocks> places;
  const auto all = [&](const auto& work) {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) threads.emplace_back([&, t] { work(t); });
    for (std::thread& thread : threads) thread.join();
  };
  all([&](int t) {
    for (int i = 0; i < kBlocks; ++i) {
      blocks.take(&places[t * kBlocks + i], ledger, static_cast<Category>(i % 6), i);
    }
  });
  EXPECT_EQ(ledger->counts().total.now, kThreads * kBlocks * (kBlocks - 1) / 2);
  all([&](int t) {  // blocks of the next thread, in reverse order
    for (int i = kBlocks - 1; i >= 0; --i) {
      blocks.give(&places[(t + 1) % kThreads * kBlocks + i]);
      blocks.give(&places[(t + 1) % kThreads * kBlocks + i]);  // already freed
    }
  });
  const LedgerCounts counts = ledger->counts();
  EXPECT_EQ(counts.total.now, 0);
  for (const Usage& each : counts.categories) EXPECT_EQ(each.now, 0);
  EXPECT_EQ(ledger.use_count(), 1);  // no block holds it anymore
}

TEST(Charge, LastsAsLongAsTheValue) {
  auto ledger = std::make_shared<Ledger>("r", 100);
  {
    Charge a(ledger, Category::buffers, 40);
    Charge b(std::move(a));
    EXPECT_EQ(ledger->counts().total.now, 40);
    Charge c;
    c = std::move(b);
    EXPECT_EQ(ledger->counts().total.now, 40);
    c = Charge(ledger, Category::buffers, 30);
    EXPECT_EQ(ledger->counts().total.now, 30);
    EXPECT_THROW(Charge(ledger, Category::buffers, 71), OutOfMemoryError);
    EXPECT_EQ(ledger->counts().total.now, 30);
    const Charge nothing(nullptr, Category::buffers, 1000);
  }
  EXPECT_EQ(ledger->counts().total.now, 0);
  EXPECT_EQ(ledger->counts()[Category::buffers].peak, 70);  // both, while one replaced the other
}

}  // namespace
}  // namespace tessera::memory
