// Worked examples, each computed by hand.

#include <gtest/gtest.h>

#include "tessera/planner/formulas.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

TEST(Batch, ThreeLevers) {
  EXPECT_EQ((Batch{4, 32, 8, 4096}).tokens(), 4'194'304);
  EXPECT_EQ((Batch{4, 32, 8, 4096}).samples(), 1024);
  EXPECT_EQ((Batch{2, 4, 16, 4096}).tokens(), 524'288);
}

TEST(Ring, Times) {
  EXPECT_NEAR(ring_all_reduce_time(200 * kMB, 16, 100 * kGB), 3.75 * kMs, 1e-12);
  EXPECT_NEAR(ring_all_reduce_time(14 * kGB, 8, 600 * kGB), 40.8333 * kMs, 1e-7);
  EXPECT_NEAR(ring_all_reduce_time(0, 8, 1, 1e-6), 14e-6, 1e-15);  // latency alone: 2(n-1) steps
  EXPECT_EQ(ring_all_reduce_time(1e9, 1, 1e9), 0.0);
}

TEST(Ring, BytesSent) { EXPECT_NEAR(ring_all_reduce_bytes(20 * kGB, 64), 39.375 * kGB, 1); }

TEST(Overlap, OnlyTheExcessIsExposed) {
  EXPECT_EQ(exposed(5, 3), 2);
  EXPECT_EQ(exposed(3, 5), 0);
}

TEST(Scaling, FivePercentPerDoubling) {
  EXPECT_NEAR(scaling_efficiency(8, 0.05), 1 / 1.15, 1e-12);
  EXPECT_EQ(scaling_efficiency(1, 0.05), 1.0);
}

TEST(Pipeline, Bubble) {
  EXPECT_NEAR(bubble_fraction(8, 32), 0.1795, 1e-4);
  EXPECT_DOUBLE_EQ(bubble_fraction(8, 133), 0.05);
  EXPECT_LT(bubble_fraction(8, 134), 0.05);
  EXPECT_DOUBLE_EQ(bubble_fraction(8, 32, 2), 7.0 / 71);
  EXPECT_EQ(bubble_fraction(1, 5), 0.0);
  EXPECT_NEAR(pipeline_speedup(2, 8), 1.7778, 1e-4);
  EXPECT_NEAR(pipeline_time(2, 8, 0.120, 0.220), 3.060, 1e-12);
}

TEST(TensorParallel, BytesAreActivationsNotWeights) {
  EXPECT_NEAR(tensor_parallel_bytes(8, 96, 8192, 2048, 2), 22.5 * kGB, 0.1 * kGB);
  EXPECT_DOUBLE_EQ(tensor_parallel_bytes(8, 96, 8192, 2048, 2, true) /
                       tensor_parallel_bytes(8, 96, 8192, 2048, 2),
                   1.5);
  EXPECT_EQ(tensor_parallel_bytes(1, 96, 8192, 2048, 2), 0);
}

TEST(Activations, OfOneLayer) {
  ActivationQuestion q{2048, 1, 12288, 96};
  const double sbh = 2048.0 * 12288;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * (34 + 5.0 * 96 * 2048 / 12288));
  q.attention_matrix_kept = false;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * 34);
  q.tp = 8;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * 13);
  q.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * 34 / 8);
  EXPECT_DOUBLE_EQ(recomputed_layer_bytes(2048, 1, 12288), 2 * sbh);
}

}  // namespace
}  // namespace tessera::planner
