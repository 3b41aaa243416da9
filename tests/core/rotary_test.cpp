// Frequencies of scaled rotary positions, compared with formulas in double precision.

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
#include "tests/text.h"

namespace tessera {
namespace {

RotaryScaling yarn(double factor, std::int64_t original) {
  RotaryScaling scaling;
  scaling.kind = RotaryScaling::Kind::yarn;
  scaling.factor = factor;
  scaling.original_positions = original;
  return scaling;
}

// A ramp over the pairs, between those that make beta_fast and beta_slow rotations.
std::vector<double> plain_yarn(std::int64_t width, double base, const RotaryScaling& s) {
  const auto where = [&](double turns) {  // the pair whose wave is original / turns tokens long
    const double wave = static_cast<double>(s.original_positions) / turns;
    return static_cast<double>(width) / 2 * std::log(wave / (2 * M_PI)) / std::log(base);
  };
  double from = where(s.beta_fast), to = where(s.beta_slow);
  if (s.truncate) from = std::floor(from), to = std::ceil(to);
  if (from < 0) from = 0;
  if (to > static_cast<double>(width - 1)) to = static_cast<double>(width - 1);
  std::vector<double> rates;
  for (std::int64_t i = 0; i < width / 2; ++i) {
    const double rate = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
    double divided = 0;  // fraction of the divided frequency
    if (static_cast<double>(i) > from) divided = (static_cast<double>(i) - from) / (to - from);
    if (static_cast<double>(i) >= to) divided = 1;
    rates.push_back(rate * (1 - divided) + rate / s.factor * divided);
  }
  return rates;
}

TEST(RotaryScaling, YarnKeepsFastPairsAndDividesSlowOnes) {
  std::vector<RotaryScaling> all = {yarn(4, 32768), yarn(40, 4096), yarn(2.5, 500), yarn(1, 4096)};
  all.push_back(yarn(4, 32768));
  all.back().truncate = false;
  all.push_back(yarn(8, 4096));
  all.back().beta_fast = 64;
  all.back().beta_slow = 3;
  for (const RotaryScaling& scaling : all) {
    for (const double base : {1e4, 1e6}) {
      for (const std::int64_t width : {8, 64, 128}) {
        const std::vector<double> got = rotary_rates(width, base, scaling);
        const std::vector<double> wanted = plain_yarn(width, base, scaling);
        ASSERT_EQ(got.size(), wanted.size());
        for (std::size_t i = 0; i < got.size(); ++i) {
          EXPECT_NEAR(got[i] / wanted[i], 1, 5e-6) << "pair " << i << " of " << width;
          EXPECT_EQ(got[i], static_cast<float>(got[i]));
        }
      }
    }
  }
  // Qwen2.5, by hand: pairs 0 to 23 are unchanged, pairs from 40 on are divided.
  const std::vector<double> plain = rotary_rates(128, 1e6);
  const std::vector<double> scaled = rotary_rates(128, 1e6, yarn(4, 32768));
  EXPECT_EQ(scaled[23], plain[23]);
  EXPECT_LT(scaled[24], plain[24]);
  EXPECT_GT(scaled[39], plain[39] / 4);
  EXPECT_EQ(scaled[40], plain[40] / 4);
  EXPECT_EQ(scaled[63], plain[63] / 4);
}

// Ramps of zero or negative length.
TEST(RotaryScaling, YarnHandlesATinyContext) {
  const std::vector<double> plain = rotary_rates(8, 1e4), got = rotary_rates(8, 1e4, yarn(4, 2));
  EXPECT_EQ(got[0], plain[0]);
  for (std::size_t i = 1; i < 4; ++i) EXPECT_EQ(got[i], plain[i] / 4) << i;
  EXPECT_EQ(rotary_rates(64, 1e4, yarn(4, 1)), rotary_rates(64, 1e4));
}

TEST(RotaryScaling, YarnMultipliesQueriesAndKeys) {
  RotaryScaling scaling = yarn(4, 32768);
  EXPECT_DOUBLE_EQ(rotary_gain(scaling), 1 + std::log(4.0) / 10);
  scaling.mscale = 0.5;  // has no effect without mscale_all_dim
  EXPECT_DOUBLE_EQ(rotary_gain(scaling), 1 + std::log(4.0) / 10);
  scaling.mscale_all_dim = 2;
  EXPECT_DOUBLE_EQ(rotary_gain(scaling), (1 + 0.05 * std::log(4.0)) / (1 + 0.2 * std::log(4.0)));
  scaling.attention_factor = 1.25;
  EXPECT_EQ(rotary_gain(scaling), 1.25);
  EXPECT_EQ(rotary_gain(yarn(1, 4096)), 1);
  EXPECT_EQ(rotary_gain(yarn(0.5, 4096)), 1);
  scaling.kind = RotaryScaling::Kind::linear;
  EXPECT_EQ(rotary_gain(scaling), 1);
  EXPECT_EQ(rotary_gain({}), 1);
}

TEST(RotaryScaling, DynamicChangesNothingWithinTheContext) {
  RotaryScaling scaling;
  scaling.kind = RotaryScaling::Kind::dynamic;
  scaling.factor = 3;
  EXPECT_EQ(rotary_rates(64, 1e4, scaling), rotary_rates(64, 1e4));
  EXPECT_EQ(rotary_gain(scaling), 1);
}

TEST(RotaryScaling, CheckNamesTheInvalidField) {
  const auto refused = [](auto change, double base = 1e4) {
    RotaryScaling scaling = yarn(4, 4096);
    check(scaling, 1e4);
    change(scaling);
    return error_of([&] { check(scaling, base); });
  };
  EXPECT_TRUE(contains(refused([](RotaryScaling& s) { s.factor = 0; }), "factor"));
  EXPECT_TRUE(contains(refused([](RotaryScaling& s) { s.beta_slow = 0; }), "beta_slow"));
  EXPECT_TRUE(contains(refused([](RotaryScaling& s) { s.beta_fast = 0.5; }), "beta_fast"));
  EXPECT_TRUE(contains(refused([](RotaryScaling& s) { s.original_positions = 0; }), "positions"));
  EXPECT_TRUE(contains(refused([](RotaryScaling& s) { s.mscale = -1; }), "mscale"));
  EXPECT_TRUE(contains(refused([](RotaryScaling&) {}, 1), "base"));
}

}  // namespace
}  // namespace tessera
