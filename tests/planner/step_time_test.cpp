#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tessera/core/errors.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/program_cost.h"
#include "tessera/planner/score.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

const Catalog& hardware() {
  static const Catalog catalog;
  return catalog;
}

RunConfig question(const char* name = "a100-80") {
  RunConfig q = RunConfig::for_plan();
  q.model = gpt_shape(24, 2048, 16, 51200, 1024);
  q.hardware = hardware().find(name);
  q.micro_batch = 4;
  return q;
}
double step(const RunConfig& q) { return step_time(resolve(q)).step(); }

TEST(KernelTime, ProductsTakeWholeWavesOfTiles) {
  const Hardware& h = hardware().find("a100-80");
  // 108 tiles of 256 x 128 are one wave; another row of tiles starts a second one.
  const double one = product_time(h, 2, 256 * 9, 128 * 12, 8192);
  EXPECT_DOUBLE_EQ(product_time(h, 2, 256 * 9 - 100, 128 * 12, 8192), one);
  const double more = product_time(h, 2, 256 * 9 + 1, 128 * 12, 8192);
  EXPECT_GT(more, 1.2 * one);
  EXPECT_LE(more, 2 * one);
  // Long products approach the given efficiency and never exceed it.
  for (const double n : {512.0, 1000.0, 4096.0, 16384.0}) {
    const double rate = 2 * n * n * n / product_time(h, 2, n, n, n) / h.peak_16bit;
    EXPECT_LT(rate, h.product_efficiency);
    if (n > 10'000) {
      EXPECT_GT(rate, 0.95 * h.product_efficiency);
    }
  }
}

TEST(KernelTime, ThinProductsAreLimitedByBandwidth) {
  const Hardware& h = hardware().find("a100-80");
  const double n = 16384;
  EXPECT_DOUBLE_EQ(product_time(h, 2, 1, n, n), pass_time(h, 2 * (n + n * n + n)));
  EXPECT_GT(product_time(h, 4, n, n, n), 2 * product_time(h, 2, n, n, n));  // fp32
}

TEST(KernelTime, TheLongerOfHostAndDeviceCounts) {
  const Hardware& h = hardware().find("a100-80");
  const double host = 100 * h.launch;
  EXPECT_NEAR(elapsed(h, {0, 100}), host, 0.01 * host);
  EXPECT_NEAR(elapsed(h, {50 * host, 100}), 50 * host + 100 * h.kernel_start, 0.01 * host);
  const double even = elapsed(h, {host, 100});
  EXPECT_GT(even, host);
  EXPECT_LT(even, 2 * host);
  EXPECT_EQ(elapsed(h, {}), 0);
}

TEST(StepTime, PartsAddUpAndAreNotNegative) {
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    for (const int zero : {0, 1, 2, 3}) {
      for (const int tp : {1, 4}) {
        for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
          RunConfig q = question();
          q.schedule = *find_named<ScheduleChoice>(schedule), q.zero = zero,
          q.axes.set(Axis::tp, tp), q.recompute = recompute;
          q.axes.set(Axis::pp, 4), q.axes.set_dp(4), q.grad_accum = 8;
          const StepTime t = step_time(resolve(q));
          for (const double part : {t.compute, t.comm[Axis::tp], t.comm[Axis::pp],
                                    t.comm[Axis::dp_shard], t.bubble, t.optimizer}) {
            EXPECT_TRUE(std::isfinite(part) && part >= 0) << schedule << " zero " << zero;
          }
          EXPECT_EQ(t.comm[Axis::tp] > 0, tp > 1);
          EXPECT_GT(t.comm[Axis::dp_shard], 0);
          EXPECT_GT(t.comm[Axis::pp], 0);
          EXPECT_GT(t.bubble, 0);
          EXPECT_DOUBLE_EQ(t.step(), t.compute + t.comm[Axis::tp] + t.comm[Axis::pp] +
                                         t.comm[Axis::dp_shard] + t.bubble + t.optimizer);
        }
      }
    }
  }
}

TEST(StepTime, ChunksAddUpToTheStepsCompute) {
  RunConfig q = question();
  q.axes.set(Axis::tp, 2), q.grad_accum = 3;
  q = resolve(q);
  const auto chunks = describe_step(q).chunks;
  ASSERT_EQ(chunks.size(), 1U);
  const StepChunk& c = chunks[0][0];
  const StepTime t = step_time(q);
  EXPECT_NEAR(3 * (c.forward + c.backward_input + c.backward_weight), t.compute + t.comm[Axis::tp],
              1e-9);
  EXPECT_NEAR(3 * (c.forward_comm[Axis::tp] + c.backward_comm[Axis::tp]), t.comm[Axis::tp], 1e-9);
  EXPECT_DOUBLE_EQ(c.param_bytes, c.grad_bytes);  // 2 + 2 bytes
}

TEST(StepTime, MoreWorkTakesLonger) {
  const auto grows = [](const char* what, const std::function<void(RunConfig&, int)>& set) {
    double before = 0;
    for (int i = 1; i <= 8; ++i) {
      RunConfig q = question();
      set(q, i);
      const double now = step(q);
      EXPECT_GT(now, before) << what << " " << i;
      before = now;
    }
  };
  grows("micro-batch", [](RunConfig& q, int i) { q.micro_batch = i; });
  grows("accumulation", [](RunConfig& q, int i) { q.grad_accum = i; });
  grows("sequence", [](RunConfig& q, int i) { q.seq = 256 * i; });
  grows("layers", [](RunConfig& q, int i) { q.model.layers = i; });
  grows("vocabulary", [](RunConfig& q, int i) { q.model.vocab = 20'000 * i; });
}

TEST(StepTime, RecomputationTakesTime) {
  for (const Attention attention : {Attention::fused, Attention::unfused}) {
    RunConfig q = question();
    q.attention = attention;
    const double none = step(q);
    q.recompute = Recompute::selective;
    const double selective = step(q);
    q.recompute = Recompute::full;
    const double full = step(q);
    EXPECT_LT(none, selective);
    EXPECT_LT(selective, full);
    EXPECT_LT(full, 1.45 * none);
  }
  RunConfig q = question();
  const double fused = step(q);
  q.attention = Attention::unfused;
  EXPECT_LT(fused, step(q));
  q.layout = parse_state_layout("fp32");
  EXPECT_GT(step(q), 4 * fused);
}

TEST(StepTime, SmallModelsAreLimitedByLaunches) {
  RunConfig q = question();
  q.model = gpt_shape(20, 1024, 16, 51200, 1024);
  q.micro_batch = 1, q.recompute = Recompute::full, q.attention = Attention::unfused;
  const double one = step(q);
  EXPECT_GT(one, 20 * 74 * q.hardware.launch);
  q.axes.set(Axis::tp, 8);  // an eighth of the work, the same number of launches
  EXPECT_GT(step(q), one);
  q.hardware.launch /= 10;
  EXPECT_LT(step(q), 0.8 * one);
}

// [Note: the last host]: every collective inside the model waits for it, longer with each doubling
// of the ranks.
TEST(StepTime, CollectivesOfALayerWaitForTheLastHost) {
  for (const int tp : {1, 2, 4, 8}) {
    RunConfig q = question();
    q.model = find_model_shape("gpt3-6.7b");
    q.axes.set(Axis::tp, tp);
    q.hardware.launch = q.hardware.launch_skew = 0;  // removes the host's cost
    const StepTime at_once = step_time(resolve(q));
    q.hardware.launch_skew = 1e-3;
    const StepTime apart = step_time(resolve(q));
    const double doublings = std::log2(tp), layers = 32;
    // Two in each direction per layer, one of the embedding and one of the head. Three short ones
    // of the loss count as computation.
    EXPECT_NEAR(apart.comm[Axis::tp] - at_once.comm[Axis::tp], 1e-3 * doublings * (4 * layers + 2),
                1e-9)
        << tp;
    EXPECT_NEAR(apart.compute - at_once.compute, 1e-3 * doublings * 3, 1e-9) << tp;
  }
}

// Rounding errors of sums do not count as a bubble.
TEST(StepTime, HasNoBubbleWithoutAPipeline) {
  for (const char* model : {"gpt2-124m", "gpt2-xl", "llama2-7b", "llama2-70b"}) {
    for (const int dp : {1, 2, 3, 8, 64}) {
      for (const int zero : {0, 1, 2, 3}) {
        for (const int micros : {1, 3, 64}) {
          RunConfig q = question("h100");
          q.model = find_model_shape(model);
          q.axes.set_dp(dp), q.zero = zero, q.grad_accum = micros;
          EXPECT_EQ(step_time(resolve(q)).bubble, 0)
              << model << " dp " << dp << " ZeRO " << zero << " micro-batches " << micros;
        }
      }
    }
  }
}

TEST(StepTime, OverlapHidesTransfersAtTheCostOfInterference) {
  for (const int zero : {0, 1, 2, 3}) {
    RunConfig q = question("h100");
    q.axes.set_dp(8), q.zero = zero;
    const StepTime with = step_time(resolve(q));
    q.overlap_grad_reduce = q.overlap_param_gather = false;
    const StepTime without = step_time(resolve(q));
    EXPECT_LT(with.comm[Axis::dp_shard], without.comm[Axis::dp_shard]) << zero;
    EXPECT_GT(with.comm[Axis::dp_shard], 0.1 * without.comm[Axis::dp_shard]) << zero;
    EXPECT_DOUBLE_EQ(with.compute, without.compute) << zero;
  }
  // Stage 3 sends 50% more, and more with every micro-batch. It also uses more pieces, so compare
  // without latency.
  RunConfig q = question("h100");
  q.hardware.inside.latency = 0;
  q.axes.set_dp(8), q.overlap_grad_reduce = q.overlap_param_gather = false;
  q.hardware.inside.latency = 0;  // stage 3 sends units, the others everything at once
  const double plain_dp = step_time(resolve(q)).comm[Axis::dp_shard];
  q.zero = 3;
  EXPECT_NEAR(step_time(resolve(q)).comm[Axis::dp_shard] / plain_dp, 1.5, 0.01);
  q.grad_accum = 4;
  EXPECT_NEAR(step_time(resolve(q)).comm[Axis::dp_shard] / plain_dp, 6, 0.04);
}

// Tessera's stage 3 reduces buckets, as its other stages do; FSDP reduces units. The bytes are the
// same.
TEST(StepTime, TesseraReducesBucketsAtStage3) {
  for (const double bucket : {1e6, 40e6, 400e6}) {
    for (const char* model : {"gpt2-xl", "llama2-7b"}) {
      const auto reductions = [&](Software software, int zero) {
        RunConfig q = question("h100");
        q.model = find_model_shape(model);
        q.axes.set_dp(8);
        q.zero = zero, q.software = software, q.bucket_bytes = bucket;
        const Step step = describe_step(resolve(q));
        return step.reductions(step.chunks[0][0], step.places());
      };
      const Transfers own = reductions(Software::tessera, 3),
                      two = reductions(Software::tessera, 2);
      const Transfers fsdp = reductions(Software::pytorch, 3);
      EXPECT_EQ(own.count, two.count) << model << " " << bucket;
      EXPECT_DOUBLE_EQ(own.bytes(), two.bytes());
      EXPECT_EQ(fsdp.count, find_model_shape(model).layers + 2);
      EXPECT_NEAR(own.bytes() / fsdp.bytes(), 1, 1e-3);  // a padded table
    }
  }
}

TEST(StepTime, ShardedOptimizersAreFaster) {
  RunConfig q = question("h100");
  q.axes.set_dp(8);
  const double whole = step_time(resolve(q)).optimizer;
  // Megatron's 6.5 passes over 2-byte gradients are not sharded; all 26 bytes of state and
  // parameters are.
  q.zero = 1;
  EXPECT_NEAR(step_time(resolve(q)).optimizer / whole, (26.0 / 8 + 13) / (26 + 13), 0.01);
  q.zero = 2;
  EXPECT_NEAR(step_time(resolve(q)).optimizer / whole, 1.0 / 8, 0.03);
}

TEST(StepTime, ModelsOfEveryKindHaveATime) {
  for (const ModelShape& model : model_shapes()) {
    for (const Hardware& h : hardware().all()) {
      RunConfig q = RunConfig::for_plan();
      q.model = model;
      q.hardware = h;
      if (!h.bf16) q.layout = parse_state_layout("fp16");
      const Plan plan = plan_numbers(resolve(q));
      EXPECT_GT(plan.mfu, 0) << model.name << " on " << h.name;
      EXPECT_LT(plan.mfu, h.product_efficiency) << model.name << " on " << h.name;
    }
  }
}

TEST(Score, ComputesStatisticsOfKnownErrors) {
  std::vector<ScoredRow> rows;
  const double predicted = step(question());
  for (const double error : {0.1, -0.2, 0.0, 0.4, -0.05}) {
    rows.push_back({"row", resolve(question()), predicted / (1 + error), 0});
  }
  const Score result = score(rows);
  EXPECT_NEAR(result.mean, 0.15, 1e-12);
  EXPECT_NEAR(result.median, 0.1, 1e-12);
  EXPECT_NEAR(result.percentile90, 0.32, 1e-12);  // between 0.2 and 0.4
  EXPECT_NEAR(result.bias, 0.05, 1e-12);
  EXPECT_NEAR(result.rows.front().error(), 0.4, 1e-12);
  EXPECT_NEAR(result.rows.back().error(), 0, 1e-12);
  EXPECT_THROW(score({}), UsageError);
  rows[0].measured = 0;
  EXPECT_THROW(score(rows), UsageError);
}

TEST(Score, GroupsShowTheBiasOfAnAxis) {
  std::vector<ScoredRow> rows;
  for (const int tp : {1, 2, 4}) {
    for (const double error : {-0.02, 0.02}) {
      RunConfig q = question();
      q.axes.set(Axis::tp, tp);
      q = resolve(q);
      const double bias = tp == 4 ? 0.3 : 0;
      rows.push_back({"row", q, step_time(q).step() / (1 + bias + error), 0});
    }
  }
  const auto groups = score_groups(score(rows));
  int of_tp = 0;
  for (const ScoreGroup& group : groups) {
    if (group.by != "tp") continue;
    ++of_tp;
    EXPECT_EQ(group.rows, 2);
    EXPECT_NEAR(group.bias, group.value == "4" ? 0.3 : 0, 1e-12) << group.value;
    EXPECT_NEAR(group.mean, group.value == "4" ? 0.3 : 0.02, 1e-12) << group.value;
  }
  EXPECT_EQ(of_tp, 3);
  EXPECT_EQ(groups.size(), 3U + 1 + 1 + 1);
}

// The interval contains the prediction and is that of the run's kind.
TEST(Interval, ContainsThePrediction) {
  for (const char* name : {"a100-80", "h200", "cpu"}) {
    for (const int dp : {1, 2, 16}) {
      for (const auto software : {Software::megatron, Software::tessera, Software::pytorch}) {
        RunConfig q = question(name);
        q.axes.set_dp(dp);
        q.software = software;
        q = resolve(q);
        const Interval interval = step_interval(q, 2);
        EXPECT_LT(interval.low, 2);
        EXPECT_GE(interval.high, 2);
        EXPECT_FALSE(interval.basis.empty());
        const Interval twice = step_interval(q, 4);
        EXPECT_DOUBLE_EQ(twice.low, 2 * interval.low);
        EXPECT_DOUBLE_EQ(twice.high, 2 * interval.high);
      }
    }
  }
}

// An unmeasured kind has a wider interval than any measured one.
TEST(Interval, IsWidestForUnmeasuredKinds) {
  RunConfig q = question("a100-80");
  q.axes.set_dp(16);
  q.software = Software::megatron;
  const Interval known = step_interval(resolve(q), 1);
  q.axes.set(Axis::tp, 16), q.axes.set_dp(1);
  q.model = find_model_shape("gpt3-175b");
  const Interval across = step_interval(resolve(q), 1);
  EXPECT_LT(across.low, known.low);
  EXPECT_GT(across.high, known.high);
  EXPECT_NE(across.basis.find("no measured run"), std::string::npos);
}

// [Note: collectives] for a whole step: tp 16 that fills two nodes sends each sum out of a node
// once, through all its adapters. Through a single adapter it takes longer by the number of
// adapters.
TEST(StepTime, TensorParallelismAcrossNodesUsesAllAdapters) {
  for (const char* name : {"a100-80", "dgx-a100", "h100"}) {
    for (const int micro : {1, 2, 4}) {
      RunConfig asked = question(name);
      asked.model = find_model_shape("gpt3-175b");
      asked.micro_batch = micro;
      asked.hardware.launch = asked.hardware.launch_skew = 0;  // a slow host would hide some of it
      asked.axes.set(Axis::tp, 16);
      const RunConfig q = resolve(asked);
      const double sums = 4.0 * static_cast<double>(q.model.layers) + 2;  // plus embedding and head
      const double bytes = 2.0 * micro * static_cast<double>(q.seq * q.model.hidden);
      const Hardware& h = q.hardware;
      const double adapters = h.topology(q.per_node).out_of_node();
      const double near = 2 * 15.0 / 16 * bytes / h.inside.bandwidth;
      const double least = sums * std::max(near, bytes / adapters);
      const double latency = sums * 2 * (7 * h.inside.latency + h.between.latency);
      const StepTime across = step_time(q);
      EXPECT_GE(across.comm[Axis::tp], 0.99 * least) << name;
      // The sums of the loss are short.
      EXPECT_LE(across.comm[Axis::tp], 1.02 * (least + latency) + 1e-3) << name;
      RunConfig inside = asked;
      inside.axes.set(Axis::tp, 8);
      EXPECT_GT(across.comm[Axis::tp], step_time(resolve(inside)).comm[Axis::tp]) << name;
      RunConfig apart = asked;  // one device in each of sixteen nodes, through one adapter at most
      apart.order = "dp,tp,pp";
      apart.axes.set_dp(8);
      EXPECT_GT(step_time(resolve(apart)).comm[Axis::tp], 3 * across.comm[Axis::tp]) << name;
    }
  }
}

}  // namespace
}  // namespace tessera::planner
