#include "tessera/simulator/failures.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tessera/core/errors.h"

namespace tessera::simulator {
namespace {

Reliability cluster(double mtbf_hours, int devices, double checkpoint, double restart) {
  return {mtbf_hours * 3600, devices, checkpoint, restart};
}

TEST(Failures, SimulationMatchesTheClosedForm) {
  int outside = 0, all = 0;
  for (const int devices : {1, 8, 1024, 16384, 100000}) {
    for (const double checkpoint : {0.0, 10.0, 120.0, 600.0}) {
      for (const double restart : {0.0, 300.0, 1800.0}) {
        const Reliability r = cluster(50000, devices, checkpoint, restart);
        for (const double interval : {60.0, 1800.0, 7200.0}) {
          const double want = expected_goodput(r, interval);
          const Goodput got = simulated_goodput(r, interval, 7);
          EXPECT_NEAR(got.fraction, want, 5 * got.error + 1e-9) << devices << " " << interval;
          EXPECT_LT(got.error, 0.02);
          outside += std::abs(got.fraction - want) > 2 * got.error;
          ++all;
        }
      }
    }
  }
  EXPECT_LT(outside, all / 8);  // one in twenty is expected
}

// No interval is better than the best one, and the approximations are close to it.
TEST(Failures, BestIntervalIsBest) {
  for (const int devices : {8, 1024, 16384, 100000}) {
    for (const double checkpoint : {1.0, 30.0, 300.0}) {
      const Reliability r = cluster(50000, devices, checkpoint, 600);
      const double best = best_interval(r), top = expected_goodput(r, best);
      for (double factor = 0.2; factor < 5; factor *= 1.1) {
        EXPECT_LE(expected_goodput(r, best * factor), top + 1e-12);
      }
      const double ratio = checkpoint / r.system_mtbf();
      EXPECT_NEAR(young_interval(r) / best, 1, std::sqrt(ratio) + 1e-6);
      EXPECT_NEAR(daly_interval(r) / best, 1, ratio + 1e-6);
      // The simulation has its maximum at the same interval.
      const double events = simulated_goodput(r, best, 3).fraction;
      EXPECT_GT(events, simulated_goodput(r, best * 6, 3).fraction);
      EXPECT_GT(events, simulated_goodput(r, best / 6, 3).fraction);
    }
  }
}

TEST(Failures, HandlesLimitsAndRejectsInvalidValues) {
  const Reliability safe = cluster(1e12, 1, 10, 100);
  EXPECT_NEAR(expected_goodput(safe, 990), 0.99, 1e-6);
  EXPECT_NEAR(best_interval(cluster(50000, 1, 0, 100)), 0, 1e-3);
  EXPECT_THROW(check(Reliability{}), UsageError);
  // No restart would succeed.
  EXPECT_THROW(check(cluster(1.0 / 60, 8, 10, 600)), UsageError);
  EXPECT_THROW(check(cluster(1, 0, 1, 1)), UsageError);
  EXPECT_THROW(check(cluster(1, 1, -1, 1)), UsageError);
  EXPECT_THROW(check(cluster(1, 1, 1, std::nan(""))), UsageError);
  check(cluster(1, 1, 0, 0));
}

}  // namespace
}  // namespace tessera::simulator
