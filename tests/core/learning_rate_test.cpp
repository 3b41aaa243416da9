#include "tessera/core/learning_rate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"

namespace tessera {
namespace {

using Kind = LrSchedule::Kind;

TEST(LearningRate, WarmsUpLinearly) {
  for (const Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    const LrSchedule schedule{.kind = kind, .warmup = 9, .total = 100};
    for (int step = 0; step < 9; ++step) EXPECT_DOUBLE_EQ(schedule.factor(step), (step + 1) / 10.0);
    EXPECT_DOUBLE_EQ(schedule.factor(9), 1);
  }
}

TEST(LearningRate, EndsAtTheMinimumAndStaysThere) {
  for (const Kind kind : {Kind::linear, Kind::cosine, Kind::wsd}) {
    for (const int total : {2, 3, 10, 1000}) {
      const LrSchedule schedule{.kind = kind, .total = total, .decay_share = 0.5, .min_ratio = 0.1};
      EXPECT_DOUBLE_EQ(schedule.factor(0), 1);
      if (total > 2) {  // with two steps there is no decay
        EXPECT_NEAR(schedule.factor(total - 1), 0.1, 1e-12) << name(kind) << " " << total;
      }
      EXPECT_NEAR(schedule.factor(10 * total), 0.1, 1e-12);
    }
  }
  EXPECT_DOUBLE_EQ((LrSchedule{.kind = Kind::constant, .total = 10}).factor(99), 1);
}

TEST(LearningRate, NeverRisesAfterTheWarmUp) {
  for (const Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    const LrSchedule schedule{.kind = kind, .warmup = 7, .total = 60, .min_ratio = 0};
    for (int step = 8; step < 70; ++step) {
      EXPECT_LE(schedule.factor(step), schedule.factor(step - 1) + 1e-15);
    }
  }
}

TEST(LearningRate, HasKnownValuesHalfway) {
  const LrSchedule linear{.kind = Kind::linear, .total = 101, .min_ratio = 0.2};
  EXPECT_NEAR(linear.factor(50), 0.6, 1e-12);
  const LrSchedule cosine{.kind = Kind::cosine, .total = 101, .min_ratio = 0.2};
  EXPECT_NEAR(cosine.factor(50), 0.6, 1e-12);
  EXPECT_NEAR(cosine.factor(25), 0.2 + 0.8 * 0.5 * (1 + std::sqrt(0.5)), 1e-12);
  const LrSchedule wsd{.kind = Kind::wsd, .total = 100, .decay_share = 0.2, .min_ratio = 0};
  EXPECT_DOUBLE_EQ(wsd.factor(80), 1);
  EXPECT_LT(wsd.factor(81), 1);
  EXPECT_NEAR(wsd.factor(99), 0, 1e-12);
}

TEST(LearningRate, ParsesNamesAndRejectsInvalidValues) {
  for (const Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    EXPECT_EQ(find_named<Kind>(name(kind)), kind);
  }
  EXPECT_EQ(find_named<Kind>("cosin"), std::nullopt);
  EXPECT_THROW(check({.warmup = 11, .total = 10}), UsageError);
  EXPECT_THROW(check({.total = 0}), UsageError);
  EXPECT_THROW(check({.min_ratio = -0.1}), UsageError);
  EXPECT_THROW(check({.decay_share = std::nan("")}), UsageError);
  EXPECT_NO_THROW(check({.warmup = 10, .total = 10}));
}

}  // namespace
}  // namespace tessera
