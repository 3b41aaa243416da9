#include "tessera/data/source.h"

#include <gtest/gtest.h>

#include <set>

namespace tessera::data {
namespace {

// For every division, a step covers exactly the samples of one process, without overlap.
TEST(Sampler, CoversTheSameSamplesForEveryDivision) {
  constexpr std::int64_t kGlobal = 24;
  for (const std::int64_t ranks : {1, 2, 3, 4}) {
    for (const std::int64_t micro : {1, 2}) {
      const Sampler sampler{ranks, kGlobal / ranks / micro, micro};
      ASSERT_EQ(sampler.global_batch(), kGlobal);
      for (const std::int64_t step : {0, 1, 5}) {
        std::set<std::uint64_t> seen;
        std::uint64_t next = static_cast<std::uint64_t>(step * kGlobal);
        for (std::int64_t r = 0; r < ranks; ++r) {
          for (std::int64_t k = 0; k < sampler.micro_batches; ++k) {
            const std::uint64_t first = sampler.first(step, r, k);
            EXPECT_EQ(first, next);  // contiguous, rank by rank
            next = first + static_cast<std::uint64_t>(micro);
            for (std::int64_t b = 0; b < micro; ++b) seen.insert(first + b);
          }
        }
        EXPECT_EQ(seen.size(), static_cast<std::size_t>(kGlobal));
        EXPECT_EQ(*seen.begin(), static_cast<std::uint64_t>(step * kGlobal));
        EXPECT_EQ(*seen.rbegin(), static_cast<std::uint64_t>((step + 1) * kGlobal - 1));
      }
    }
  }
}

}  // namespace
}  // namespace tessera::data
