// Additional memory and traffic of Muon, compared with other optimizers. The trainer's tests
// measure the same.

#include "tessera/planner/whole_matrices.h"

#include <gtest/gtest.h>

#include "tessera/core/matrix_batches.h"
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
  EXPECT_EQ(matrix_buffer_bytes(muon(2, 2)), 0);
}

// On a GPU all matrices of this model are one batch: its buffer is kept, and those of equal shape
// are orthogonalized together in bf16.
TEST(WholeMatrices, AreUpdatedInBatchesOnAGpu) {
  const auto on_gpu = [](int stage, int dp) {
    RunConfig q = muon(stage, dp);
    q.gpu = true;
    return q;
  };
  const std::int64_t all = 4 * kLarge + 2 * kMiddle + 2 * kGram;
  EXPECT_EQ(matrix_buffer_bytes(on_gpu(0, 1)), all);
  EXPECT_EQ(matrix_buffer_bytes(on_gpu(3, 1)), all);
  const std::int64_t stack = 4 * (kLarge + kGram);  // two x and two Gram matrices, 16 bits
  EXPECT_EQ(matrix_update_bytes(on_gpu(0, 1)), stack);
  // With two ranks each owns half of the matrices, and there are a send and a receive buffer: of
  // whole matrices, or of shards.
  EXPECT_EQ(matrix_buffer_bytes(on_gpu(0, 2)), 2 * all);
  EXPECT_EQ(matrix_buffer_bytes(on_gpu(2, 2)), all);
  EXPECT_EQ(matrix_update_bytes(on_gpu(0, 2)), stack / 2);
  EXPECT_EQ(matrix_update_bytes(on_gpu(2, 2)), stack / 2 + 2 * kLarge);  // joined in fp32
  // Batches of a large model are bounded.
  RunConfig large = on_gpu(0, 1);
  large.model = gpt_shape(48, 1600, 25, 50304, 1024);
  EXPECT_LE(matrix_buffer_bytes(large), 4 * kMatrixBatch);
  EXPECT_GT(matrix_buffer_bytes(large), 3 * kMatrixBatch);
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
