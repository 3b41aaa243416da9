#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "tessera/core/errors.h"
#include "tessera/schedule/schedule.h"
#include "tests/text.h"

namespace tessera::schedule {
namespace {

constexpr int kMaxRanks = 16, kMaxMicros = 64;

// Every schedule is valid for ranges of sizes, and holds no more activations than documented.
TEST(Schedule, IsValidAndBoundsActivationsForAllSizes) {
  for (int p = 1; p <= kMaxRanks; ++p) {
    for (int k = 1; k <= kMaxMicros; k += (k < 20 ? 1 : 7)) {
      const Proof a = validate(gpipe(p, k));
      const Proof b = validate(one_f_one_b(p, k));
      const Proof h = validate(zero_bubble_h1(p, k));
      const Proof v = validate(zero_bubble_v(p, k));
      for (int r = 0; r < p; ++r) {
        const auto i = static_cast<std::size_t>(r);
        EXPECT_EQ(a.in_flight[i], k) << p << " " << k;
        EXPECT_EQ(b.in_flight[i], std::min(p - r, k)) << p << " " << k;
        EXPECT_LE(h.in_flight[i], std::min(p, k)) << p << " " << k;
        EXPECT_LE(v.in_flight[i], std::min(2 * p, 2 * k)) << p << " " << k;
      }
    }
  }
}

TEST(Schedule, InterleavedBoundsActivationsForAllSizes) {
  for (int p = 1; p <= kMaxRanks; p += (p < 9 ? 1 : 3)) {
    for (int k = p; k <= kMaxMicros; k += (k < 20 ? 1 : 5)) {
      for (int v = 1; v <= 4; ++v) {
        const Proof proof = validate(interleaved(p, k, v));
        const int groups = k / p, largest = (k + groups - 1) / groups;
        const int bound = std::min(k * v, 2 * (p - 1) + (v - 1) * largest + 1);
        EXPECT_LE(proof.in_flight[0], bound) << p << " " << k << " " << v;
      }
    }
  }
}

TEST(Schedule, BubblesMatchTheClosedForms) {
  for (int p = 1; p <= kMaxRanks; ++p) {
    for (int k = p; k <= kMaxMicros; k += p) {
      const Durations d{1.0, 1.1, 0.9};
      const double want = static_cast<double>(p - 1) / (k + p - 1);
      EXPECT_NEAR(time(gpipe(p, k), d).bubble, want, 1e-9);
      EXPECT_NEAR(time(one_f_one_b(p, k), d).bubble, want, 1e-9);
      EXPECT_NEAR(time(one_f_one_b(p, k), d).step, (k + p - 1) * 3.0, 1e-9);
      for (int v = 2; v <= 4; ++v) {  // k is a multiple of p
        EXPECT_NEAR(time(interleaved(p, k, v), d).bubble,
                    static_cast<double>(p - 1) / (v * k + p - 1), 1e-9)
            << p << " " << k << " " << v;
      }
    }
  }
}

// With equal thirds H1 has a third of 1F1B's bubble: p-1 slots instead of 3(p-1).
TEST(Schedule, ZeroBubbleH1HasAThirdOfTheBubble) {
  for (int p = 2; p <= kMaxRanks; ++p) {
    for (int k = 2 * p; k <= kMaxMicros; k += 5) {
      EXPECT_NEAR(time(zero_bubble_h1(p, k), {}).step, 3.0 * k + p - 1, 1e-9) << p << " " << k;
    }
  }
}

// V is idle only until the first micro-batch arrives: half a forward for each rank before.
TEST(Schedule, ZeroBubbleVIsIdleOnlyAtTheStart) {
  for (int p = 2; p <= kMaxRanks; ++p) {
    for (int k = 2 * p; k <= kMaxMicros; k += 5) {
      const double step =
          time(zero_bubble_v(p, k), {0.5, 0.5, 0.5}).step;  // a chunk has half the work of a rank
      EXPECT_NEAR(step, 3.0 * k + 0.5 * (p - 1), 1e-9) << p << " " << k;
    }
  }
}

TEST(Schedule, ValidateRejectsBrokenSchedules) {
  const auto broken = [](const std::function<void(Schedule&)>& change) {
    Schedule s = one_f_one_b(3, 4);
    change(s);
    EXPECT_THROW(validate(s), Error);
  };
  broken([](Schedule& s) { s.actions[1].pop_back(); });
  broken([](Schedule& s) { s.actions[1].push_back(s.actions[1].back()); });
  broken([](Schedule& s) { std::reverse(s.actions[0].begin(), s.actions[0].end()); });
  broken([](Schedule& s) { s.actions[0][0].micro = 4; });
  broken([](Schedule& s) { s.stages[0][0] = 1; });
  // Two micro-batches of the last rank swapped: a channel is out of order.
  broken([](Schedule& s) {
    for (Action& a : s.actions[2]) {
      if (a.micro < 2) a.micro = 1 - a.micro;
    }
  });
  // The backward before its forward: a deadlock.
  broken([](Schedule& s) {
    auto& last = s.actions[2];
    std::rotate(last.begin(), last.begin() + 2, last.begin() + 4);
  });
}

TEST(Schedule, RejectsInvalidSizes) {
  EXPECT_THROW(gpipe(0, 4), UsageError);
  EXPECT_TRUE(contains(error_of([] { gpipe(2, 70000); }), "must be 1 to 65536"));
  EXPECT_TRUE(contains(error_of([] { zero_bubble_v(5000, 2); }), "must be 1 to 4096"));
  EXPECT_THROW(one_f_one_b(2, 0), UsageError);
  EXPECT_THROW(interleaved(4, 3, 2), UsageError);
  EXPECT_THROW(make("1f2b", 2, 2), UsageError);
  for (const std::string& name : names()) EXPECT_EQ(make(name, 2, 4, 2).name, name);
}

}  // namespace
}  // namespace tessera::schedule
