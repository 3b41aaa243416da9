// gpt2-xl trained by Megatron-LM on H100s: reported memory, compared with predictions.

#include <gtest/gtest.h>

#include "tessera/planner/plan.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

RunConfig run(int dp, std::int64_t batch_each, int stage) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("gpt2-xl");
  q.layout = parse_state_layout("bf16-fp32grad");
  q.axes.set_dp(dp), q.micro_batch = batch_each, q.zero = stage;
  q.hardware = Catalog().find("h100");
  return resolve(q);
}
double mib(int dp, std::int64_t batch_each, int stage) {
  return memory_of(run(dp, batch_each, stage)).total() / kMiB;
}

TEST(ReferenceRuns, MemoryIsWithinTenPercent) {
  EXPECT_NEAR(mib(1, 1, 0) / 33'321, 1, 0.1);  // R1
  EXPECT_NEAR(mib(4, 1, 0) / 33'321, 1, 0.1);  // R2
  EXPECT_NEAR(mib(1, 4, 0) / 43'000, 1, 0.1);
  EXPECT_NEAR(mib(4, 15, 0) / 79'000, 1, 0.1);  // R5
  EXPECT_NEAR(mib(4, 15, 1) / 65'000, 1, 0.1);  // R6
  EXPECT_NEAR(mib(8, 16, 1) / 65'000, 1, 0.1);  // R10
  EXPECT_GT(mib(2, 16, 1), mib(4, 16, 1));      // R8, R9
  EXPECT_GT(mib(4, 16, 1), mib(8, 16, 1));
  // Sharding saves 12 · 3/4 bytes per parameter, as reported. Stage 2 would save 16 · 3/4, minus
  // two buckets.
  EXPECT_NEAR((mib(4, 15, 0) - mib(4, 15, 1)) * kMiB, 9.0 * 1'557'611'200, 1);
}

}  // namespace
}  // namespace tessera::planner
