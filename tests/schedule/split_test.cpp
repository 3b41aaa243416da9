#include "tessera/schedule/split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "tessera/core/errors.h"

namespace tessera::schedule {
namespace {

// {cost of the most expensive stage, sum of squares}
std::pair<double, double> worth(const std::vector<double>& costs, const std::vector<int>& bounds) {
  std::pair<double, double> result{0, 0};
  for (std::size_t s = 0; s + 1 < bounds.size(); ++s) {
    double cost = 0;
    for (int i = bounds[s]; i < bounds[s + 1]; ++i) cost += costs[static_cast<std::size_t>(i)];
    result.first = std::max(result.first, cost);
    result.second += cost * cost;
  }
  return result;
}

// Tries all splits.
std::pair<double, double> brute_force(const std::vector<double>& costs, int stages) {
  const int layers = static_cast<int>(costs.size());
  std::pair<double, double> best{1e300, 1e300};
  std::vector<int> bounds = {0};
  const std::function<void()> extend = [&] {
    if (static_cast<int>(bounds.size()) == stages) {
      bounds.push_back(layers);
      best = std::min(best, worth(costs, bounds));
      bounds.pop_back();
      return;
    }
    for (int next = bounds.back() + 1; next < layers; ++next) {
      bounds.push_back(next);
      extend();
      bounds.pop_back();
    }
  };
  extend();
  return best;
}

TEST(Split, MatchesExhaustiveSearch) {
  std::mt19937 random(3);
  for (int layers = 1; layers <= 10; ++layers) {
    for (int stages = 1; stages <= layers; ++stages) {
      for (int round = 0; round < 6; ++round) {
        // Integer costs, so that sums are exact and can be compared.
        std::vector<double> costs;
        for (int i = 0; i < layers; ++i) {
          costs.push_back(round == 0 ? 1.0
                                     : static_cast<double>(random() % (round < 3 ? 4 : 1000)));
        }
        const std::vector<int> bounds = split(costs, stages);
        ASSERT_EQ(bounds.size(), static_cast<std::size_t>(stages) + 1);
        EXPECT_EQ(bounds.front(), 0);
        EXPECT_EQ(bounds.back(), layers);
        for (std::size_t s = 1; s < bounds.size(); ++s) EXPECT_LT(bounds[s - 1], bounds[s]);
        EXPECT_EQ(worth(costs, bounds), brute_force(costs, stages));
      }
    }
  }
}

TEST(Split, SplitsEqualLayersEvenly) {
  const std::vector<int> bounds = split(std::vector<double>(96, 7.0), 8);
  for (std::size_t s = 0; s < bounds.size(); ++s) EXPECT_EQ(bounds[s], static_cast<int>(12 * s));
}

TEST(Split, UsesGivenCounts) {
  EXPECT_EQ(split_by_hand({1, 3, 2}, 6, 3), (std::vector<int>{0, 1, 4, 6}));
  EXPECT_THROW(split_by_hand({1, 3, 2}, 7, 3), UsageError);
  EXPECT_THROW(split_by_hand({3, 3}, 6, 3), UsageError);
  EXPECT_THROW(split_by_hand({6, 0}, 6, 2), UsageError);
}

TEST(Split, RejectsInvalidCostsAndCounts) {
  EXPECT_THROW(split({1, 2}, 3), UsageError);
  EXPECT_THROW(split({1, 2}, 0), UsageError);
  EXPECT_THROW(split({1, -2}, 1), UsageError);
  EXPECT_THROW(split({1, std::nan("")}, 1), UsageError);
  try {
    split({1, 2, 3}, 4);
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("3 layers"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("4 stages"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::schedule
