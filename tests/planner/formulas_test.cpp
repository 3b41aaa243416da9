// Worked examples, each computed by hand.

#include <gtest/gtest.h>

#include "tessera/planner/formulas.h"
#include "tests/planner/built_in.h"
#include "tests/planner/published_formulas.h"

namespace tessera::planner {
namespace {

TEST(Ring, TimeMatchesWorkedExamples) {
  EXPECT_NEAR(ring_all_reduce_time(200 * kMB, 16, 100 * kGB), 3.75 * kMs, 1e-12);
  EXPECT_NEAR(ring_all_reduce_time(14 * kGB, 8, 600 * kGB), 40.8333 * kMs, 1e-7);
  EXPECT_NEAR(ring_all_reduce_time(0, 8, 1, 1e-6), 14e-6, 1e-15);  // only latency: 2(n-1) steps
  EXPECT_EQ(ring_all_reduce_time(1e9, 1, 1e9), 0.0);
}

TEST(Ring, BytesMatchAWorkedExample) {
  EXPECT_NEAR(ring_all_reduce_bytes(20 * kGB, 64), 39.375 * kGB, 1);
}

TEST(Overlap, OnlyTheExcessIsExposed) {
  EXPECT_EQ(exposed(5, 3), 2);
  EXPECT_EQ(exposed(3, 5), 0);
}

TEST(Scaling, LosesFivePercentPerDoubling) {
  EXPECT_NEAR(scaling_efficiency(8, 0.05), 1 / 1.15, 1e-12);
  EXPECT_EQ(scaling_efficiency(1, 0.05), 1.0);
}

TEST(Pipeline, BubbleMatchesWorkedExamples) {
  EXPECT_NEAR(bubble_fraction(8, 32), 0.1795, 1e-4);
  EXPECT_DOUBLE_EQ(bubble_fraction(8, 133), 0.05);
  EXPECT_LT(bubble_fraction(8, 134), 0.05);
  EXPECT_DOUBLE_EQ(bubble_fraction(8, 32, 2), 7.0 / 71);
  EXPECT_EQ(bubble_fraction(1, 5), 0.0);
  EXPECT_NEAR(pipeline_speedup(2, 8), 1.7778, 1e-4);
  EXPECT_NEAR(pipeline_time(2, 8, 0.120, 0.220), 3.060, 1e-12);
}

TEST(Activations, LayersMatchWorkedExamples) {
  ActivationInput q{2048, 1, 12288, 96};
  const double sbh = 2048.0 * 12288;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * (34 + 5.0 * 96 * 2048 / 12288));
  q.attention_matrix_kept = false;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * 34);
  q.tp = 8;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * 13);
  q.sequence_ranks = 8;
  EXPECT_DOUBLE_EQ(layer_activation_bytes(q), sbh * 34 / 8);
  EXPECT_DOUBLE_EQ(recomputed_layer_bytes(2048, 1, 12288), 2 * sbh);
}

}  // namespace
}  // namespace tessera::planner
