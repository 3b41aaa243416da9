#include <gtest/gtest.h>

#include "tessera/planner/formulas.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"

namespace tessera::planner {
namespace {

constexpr double kGB = 1e9;

double row(const Traffic& traffic, const std::string& what) {
  for (const TrafficRow& each : traffic.rows) {
    if (each.what.find(what) != std::string::npos) return each.bytes;
  }
  return 0;
}

TEST(PlanTraffic, DataParallelInMultiplesOfTheModel) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int k : {1, 4}) {
      Question q;
      q.params = 10e9, q.dp = 64, q.zero = stage, q.grad_accum = k;
      const Traffic traffic = traffic_of(settle(q));
      const double multiples[] = {2, 2, 1.0 + k, 3.0 * k};
      EXPECT_DOUBLE_EQ(traffic.dp, multiples[stage] * 63 / 64 * 20 * kGB);
      EXPECT_DOUBLE_EQ(traffic.total(), traffic.dp);
    }
  }
}

TEST(PlanTraffic, BothPolicies) {
  Question q;
  q.params = 1e9, q.dp = 4, q.zero = 2, q.grad_accum = 8;
  const Traffic traffic = traffic_of(settle(q));
  const double hop = 0.75 * 2e9;
  EXPECT_DOUBLE_EQ(traffic.dp_each, 9 * hop);
  EXPECT_DOUBLE_EQ(traffic.dp_last, 2 * hop);
  EXPECT_DOUBLE_EQ(traffic.dp, traffic.dp_each);
}

TEST(PlanTraffic, TensorParallelCarriesActivations) {
  Question q;
  q.model = gpt_shape(96, 8192, 64, 51200, 2048);
  q.tp = 8;
  const Traffic traffic = traffic_of(settle(q));
  EXPECT_NEAR(row(traffic, "of activations") / kGB, 22.5, 0.1);
  const double pass = ring_all_reduce_bytes(2048.0 * 8192 * 2, 8);
  EXPECT_DOUBLE_EQ(row(traffic, "embeddings"), pass);
  EXPECT_DOUBLE_EQ(row(traffic, "loss"), 3 * ring_all_reduce_bytes(4 * 2048, 8));
  q.recompute = Recompute::full;
  EXPECT_DOUBLE_EQ(row(traffic_of(settle(q)), "of activations"),
                   1.5 * row(traffic, "of activations"));
  q.recompute = Recompute::none;
  q.sequence_parallel = true;
  EXPECT_DOUBLE_EQ(traffic_of(settle(q)).tp, traffic.tp);
}

TEST(PlanTraffic, PipelineBoundaries) {
  for (const int pp : {2, 4}) {
    for (const int k : {1, 8}) {
      Question q;
      q.model = gpt_shape(8, 1024, 16, 50257, 512);
      q.pp = pp, q.grad_accum = k, q.micro_batch = 2;
      const double boundary = 512.0 * 2 * 1024 * 2;
      const double tied = 50257.0 * 1024 * 2;  // two ranks: (2-1)/2 · 2
      const Traffic traffic = traffic_of(settle(q));
      // Middle ranks send both ways; with two stages each sends one way and shares the embedding.
      const double ends = k * boundary + tied, middle = pp > 2 ? 2 * k * boundary : 0;
      EXPECT_DOUBLE_EQ(traffic.pp, std::max(ends, middle));
    }
  }
}

TEST(PlanTraffic, MoreChunksSendMore) {
  Question q;
  q.model = find_model_shape("llama3-8b");
  q.pp = 4, q.grad_accum = 8;
  const double plain = traffic_of(settle(q)).pp;
  q.chunks = 4;
  EXPECT_DOUBLE_EQ(traffic_of(settle(q)).pp, 4 * plain);
  q.sequence_parallel = true, q.tp = 8;
  EXPECT_DOUBLE_EQ(traffic_of(settle(q)).pp, plain / 2);
  // A V turns round on the last rank, which sends nothing to itself.
  Question v;
  v.model = find_model_shape("llama3-8b");
  v.pp = 4, v.grad_accum = 8, v.schedule = "zb-v";
  EXPECT_DOUBLE_EQ(traffic_of(settle(v)).pp, 2 * plain);
}

TEST(PlanTraffic, RowsAddUpByAxis) {
  Question q;
  q.model = find_model_shape("gpt3-6.7b");
  q.dp = 4, q.tp = 2, q.pp = 2, q.grad_accum = 4, q.zero = 2;
  const Traffic traffic = traffic_of(settle(q));
  double dp = 0, tp = 0, pp = 0;
  for (const TrafficRow& each : traffic.rows) {
    (each.axis == "dp" ? dp : each.axis == "tp" ? tp : pp) += each.bytes;
  }
  EXPECT_DOUBLE_EQ(dp, traffic.dp);
  EXPECT_DOUBLE_EQ(tp, traffic.tp);
  EXPECT_DOUBLE_EQ(pp, traffic.pp);
}

}  // namespace
}  // namespace tessera::planner
