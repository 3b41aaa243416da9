#include "tessera/data/interleave.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tessera/core/errors.h"
#include "tests/text.h"

namespace tessera::data {
namespace {

using Weights = std::vector<std::uint64_t>;

// Each source is read as 0, 1, 2, …, exactly in proportion after every period, and never off by
// more than a few samples.
TEST(Interleave, SamplesSourcesInProportion) {
  for (const Weights& weights : {Weights{1}, Weights{7, 3}, Weights{1, 1, 1}, Weights{5, 1, 3, 2},
                                 Weights{1000, 1}, Weights{1, 999, 500, 17, 3, 3, 80}}) {
    const Interleave interleave(weights);
    const std::uint64_t period = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
    Weights next(weights.size());
    const std::uint64_t samples = 3 * period;
    for (std::uint64_t n = 0; n < samples; ++n) {
      ASSERT_EQ(interleave.counts(n), next) << n;
      const Interleave::Pick pick = interleave.pick(n);
      ASSERT_LT(pick.source, weights.size());
      ASSERT_EQ(pick.sample, next[pick.source]++) << n;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double right =
            static_cast<double>((n + 1) * weights[i]) / static_cast<double>(period);
        ASSERT_LT(std::abs(static_cast<double>(next[i]) - right),
                  1 + std::ceil(std::log2(weights.size() + 1)));
      }
      if ((n + 1) % period != 0) continue;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        ASSERT_EQ(next[i], (n + 1) / period * weights[i]);
      }
    }
  }
}

// Large sample numbers are computed directly.
TEST(Interleave, DependsOnTheSampleNumberAlone) {
  const Interleave interleave({7, 3});
  const std::uint64_t far = 10 * (std::uint64_t{1} << 50);
  Weights next = {7 * (std::uint64_t{1} << 50), 3 * (std::uint64_t{1} << 50)};
  for (std::uint64_t n = far; n < far + 100; ++n) {
    const Interleave::Pick pick = interleave.pick(n);
    EXPECT_EQ(pick.sample, next[pick.source]++);
  }
}

TEST(Interleave, ParsesDecimalWeights) {
  EXPECT_EQ(whole_weights({"0.7", "0.3"}, "--data"), (Weights{7, 3}));
  EXPECT_EQ(whole_weights({"3", "1.5", "0.750"}, "--data"), (Weights{4, 2, 1}));
  EXPECT_EQ(whole_weights({"70", "30"}, "--data"), (Weights{7, 3}));
  EXPECT_EQ(whole_weights({"1."}, "--data"), (Weights{1}));
  EXPECT_EQ(whole_weights({".5", "1"}, "--data"), (Weights{1, 2}));
  for (const char* bad : {"", "0", "0.0", "-1", "1e3", "a", "1.2.3", ".", "nan", "12345678901",
                          "0.00000000001", " 1", "+1"}) {
    EXPECT_NE(error_of([&] {
                whole_weights({"1", bad}, "--data");
              }).find("--data: got the weight"),
              std::string::npos)
        << bad;
  }
  EXPECT_THROW(whole_weights({"999999999", "0.000000001"}, "--data"), UsageError);
}

TEST(Interleave, ReducesCounts) {
  EXPECT_EQ(weights_of_counts({600, 300}), (Weights{2, 1}));
  const Weights large =
      weights_of_counts({std::uint64_t{1} << 40, 1, (std::uint64_t{1} << 39) + 5});
  EXPECT_NO_THROW(Interleave{large});
  EXPECT_EQ(large[1], 1u);
  EXPECT_NEAR(static_cast<double>(large[0]) / static_cast<double>(large[2]), 2, 1e-6);
}

TEST(Interleave, RejectsInvalidWeights) {
  EXPECT_THROW(Interleave({}), UsageError);
  EXPECT_THROW(Interleave({1, 0}), UsageError);
  EXPECT_THROW(Interleave({std::uint64_t{1} << 30, std::uint64_t{1} << 30}), UsageError);
}

}  // namespace
}  // namespace tessera::data
