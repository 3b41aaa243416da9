// Additional memory and traffic of Muon, compared with other optimizers. The trainer's tests
// measure the same.

#include "tessera/planner/whole_matrices.h"

#include <gtest/gtest.h>

#include "tessera/planner/run.h"
#include "tests/planner/run_case.h"

namespace tessera::planner {
namespace {

// Two layers: 4 matrices of 64 · 256, 2 of 64 · 192 and 2 of 64 · 64.
RunConfig muon(int stage, int dp) {
  RunConfig q = small_run(gpt_shape(2, 64, 2, 100, 16), "fp32", stage, data_parallel(dp));
  q.layout.matrix_moments = 4;
  q.bucket_bytes = 1000;  // few gradients wait for their bucket in backward
  return q;
}

constexpr std::int64_t kLarge = 4 * 64 * 256, kMiddle = 4 * 64 * 192, kGram = 4 * 64 * 64;

TEST(WholeMatrices, TrafficFollowsTheirSizes) {
  std::vector<std::int64_t> sizes;
  for (const HiddenMatrix& matrix : hidden_matrices(muon(0, 1))) {
    sizes.push_back(4 * matrix.elements);
    EXPECT_EQ(matrix.smaller_side, 64);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{kLarge, kLarge, kLarge, kLarge, kMiddle, kMiddle,
                                              kGram, kGram}));
}

TEST(WholeMatrices, AreCountedDuringTheUpdate) {
  const std::int64_t computing = 2 * kLarge + 2 * kGram;
  // The result, the matrix, and its temporaries.
  EXPECT_EQ(matrix_update_bytes(muon(0, 1)), 2 * kLarge + computing);
  EXPECT_EQ(matrix_update_bytes(muon(3, 1)), 2 * kLarge + computing);
  EXPECT_EQ(matrix_update_bytes(muon(0, 2)), 2 * kLarge + computing);
  EXPECT_EQ(matrix_update_bytes(muon(0, 8)), kLarge + 8 * kLarge);  // the results of all ranks
  // A send and a receive row for each rank.
  EXPECT_EQ(matrix_update_bytes(muon(1, 2)), 2 * kLarge + computing);
  EXPECT_EQ(matrix_update_bytes(muon(3, 2), {{Axis::dp_shard, 1}}), 2 * kLarge + computing);
  // 16 · 342 elements are a third of a large matrix. The second group of three begins with a large
  // one, and rank 1 has a smaller one in rows of that length.
  const std::int64_t rows = 2 * 3 * 4 * 16 * 342;
  EXPECT_EQ(matrix_update_bytes(muon(1, 3)), rows + computing);
  EXPECT_EQ(matrix_update_bytes(muon(1, 3), {{Axis::dp_shard, 1}}),
            rows + kMiddle + 2 * kMiddle + 2 * kGram);
  // More ranks than matrices: the last ranks have none to compute.
  EXPECT_EQ(matrix_update_bytes(muon(2, 16), {{Axis::dp_shard, 15}}), 2 * kLarge);
  RunConfig gpu = muon(0, 1);
  gpu.gpu = true;  // in bf16, after a cast
  EXPECT_EQ(matrix_update_bytes(gpu), 2 * kLarge + kLarge + kLarge / 2);
}

TEST(WholeMatrices, AreIncludedInThePlan) {
  for (int stage = 0; stage <= 3; ++stage) {
    const RunConfig q = muon(stage, 2);
    const RunMemory plan = run_memory(q);
    const std::int64_t batch = 16;  // an id and a target
    EXPECT_EQ(plan.temporary, batch + matrix_update_bytes(q)) << stage;
    // Activations and the units gathered by stage 3 are freed by then.
    const std::int64_t at_once = plan.state() + plan.buffers + plan.temporary;
    if (stage < 3) {
      EXPECT_EQ(plan.total(), at_once) << stage;
    } else {
      EXPECT_LT(plan.total(), at_once) << stage;
    }
    RunConfig other = q;
    other.layout.matrix_moments = -1;
    EXPECT_LT(run_memory(other).temporary, plan.temporary) << stage;
  }
}

}  // namespace
}  // namespace tessera::planner
