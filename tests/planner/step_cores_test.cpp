// More ranks than cores: a rank that waits in a pipeline leaves its core to the others.

#include "tessera/planner/step.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/core/text.h"
#include "tessera/planner/step_time.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

// A CPU that was measured with this many single-threaded ranks, on which only computation takes
// time.
RunConfig on_cores(int pp, int dp, int micros, int cores, int measured_ranks) {
  RunConfig q = RunConfig::for_plan();
  q.model = gpt_shape(8, 256, 4, 2048, 128);
  q.axes.set(Axis::pp, pp), q.axes.set_dp(dp);
  q.micro_batch = 2, q.grad_accum = micros;
  q.layout = parse_state_layout("fp32");
  q.hardware = built_in().find("cpu");
  q.hardware.inside = q.hardware.between = {1e18, 0};
  q.hardware.launch = q.hardware.interference = 0;
  q.hardware.units = 1;
  q.hardware.per_node = measured_ranks;
  q.hardware.cores = cores;
  return resolve(q);
}

double without_update(const RunConfig& q) {
  const StepTime time = step_time(q);
  return time.step() - time.optimizer;
}

// A step takes the computation of all ranks divided by the cores. If too few ranks are busy, it
// takes the time with one core per rank.
TEST(SharedCores, NoCoreIdlesWhileThereIsWork) {
  for (const int pp : {1, 2, 4}) {
    for (const int dp : {1, 2, 4}) {
      for (const int micros : {1, 2, 4, 16}) {
        for (const int cores : {1, 2, 3, 16}) {
          const int ranks = pp * dp;
          const double alone = without_update(on_cores(pp, dp, micros, 0, ranks));
          double work = 0;  // mean over ranks
          for (const auto& chunks : describe_step(on_cores(pp, dp, micros, 0, ranks)).chunks) {
            for (const StepChunk& chunk : chunks) work += micros * chunk.total() / pp;
          }
          const double own_core = alone * std::min(1.0, 1.0 * cores / ranks);
          const double want = cores >= ranks ? alone : std::max(work, own_core);
          EXPECT_NEAR(without_update(on_cores(pp, dp, micros, cores, ranks)) / want, 1, 1e-6)
              << "pp " << pp << " dp " << dp << " micros " << micros << " cores " << cores;
        }
      }
    }
  }
}

// With fewer ranks than were measured, each has a larger share of the cores, up to one core.
TEST(SharedCores, FewerRanksThanMeasuredAreFaster) {
  for (const int cores : {1, 2, 4, 8}) {
    const double measured = without_update(on_cores(1, 8, 4, cores, 8));
    for (const int ranks : {1, 2, 4}) {
      const double share = std::min(1.0, 1.0 * cores / ranks) / std::min(1.0, cores / 8.0);
      EXPECT_NEAR(without_update(on_cores(1, ranks, 4, cores, 8)) * share / measured, 1, 1e-6)
          << ranks << " ranks, " << cores << " cores";
    }
  }
}

// A GPU is not shared.
TEST(SharedCores, DoNotAffectGpus) {
  RunConfig q = RunConfig::for_plan();
  q.model = gpt_shape(8, 256, 4, 2048, 128);
  q.axes.set(Axis::pp, 2), q.axes.set_dp(2);
  q.hardware = built_in().find("h100");
  const double before = step_time(resolve(q)).step();
  q.hardware.cores = 1;
  EXPECT_EQ(step_time(resolve(q)).step(), before);
}

}  // namespace
}  // namespace tessera::planner
