#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tessera/planner/settings.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

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
      q.params = 10e9, q.axes.set_dp(64), q.zero = stage, q.grad_accum = k;
      const Traffic traffic = traffic_of(settle(q));
      const double multiples[] = {2, 2, 1.0 + k, 3.0 * k};
      EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], multiples[stage] * 63 / 64 * 20 * kGB);
      EXPECT_DOUBLE_EQ(traffic.total(), traffic.sent[Axis::dp_shard]);
    }
  }
}

TEST(PlanTraffic, BothPolicies) {
  Question q;
  q.params = 1e9, q.axes.set_dp(4), q.zero = 2, q.grad_accum = 8;
  const Traffic traffic = traffic_of(settle(q));
  const double hop = 0.75 * 2e9;
  EXPECT_DOUBLE_EQ(traffic.dp_each, 9 * hop);
  EXPECT_DOUBLE_EQ(traffic.dp_last, 2 * hop);
  EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], traffic.dp_each);
}

TEST(PlanTraffic, TensorParallelCarriesActivations) {
  Question q;
  q.model = gpt_shape(96, 8192, 64, 51200, 2048);
  q.axes.set(Axis::tp, 8);
  const Traffic traffic = traffic_of(settle(q));
  EXPECT_NEAR(row(traffic, "of activations") / kGB, 22.5, 0.1);
  const double pass = ring_all_reduce_bytes(2048.0 * 8192 * 2, 8);
  EXPECT_DOUBLE_EQ(row(traffic, "embeddings"), pass);
  EXPECT_DOUBLE_EQ(row(traffic, "loss"), 3 * ring_all_reduce_bytes(4 * 2048, 8));
  q.recompute = Recompute::full;
  EXPECT_DOUBLE_EQ(row(traffic_of(settle(q)), "of activations"),
                   1.5 * row(traffic, "of activations"));
  // The sequence costs nothing but the sums of the gradients of norms.
  q.recompute = Recompute::none;
  q.sequence_parallel = true;
  const Traffic cut = traffic_of(settle(q));
  EXPECT_DOUBLE_EQ(row(cut, "norms"), 96.5 * ring_all_reduce_bytes(4 * 8192 * 2, 8));
  EXPECT_DOUBLE_EQ(cut.sent[Axis::tp], traffic.sent[Axis::tp] + row(cut, "norms"));
}

TEST(PlanTraffic, PipelineBoundaries) {
  for (const int pp : {2, 4}) {
    for (const int k : {1, 8}) {
      Question q;
      q.model = gpt_shape(8, 1024, 16, 50257, 512);
      q.axes.set(Axis::pp, pp), q.grad_accum = k, q.micro_batch = 2;
      const double boundary = 512.0 * 2 * 1024 * 2;
      const double tied = 50257.0 * 1024 * 2;  // two ranks: (2-1)/2 · 2
      const Traffic traffic = traffic_of(settle(q));
      // Middle ranks send both ways; with two stages each sends one way and shares the embedding.
      const double ends = k * boundary + tied, middle = pp > 2 ? 2 * k * boundary : 0;
      EXPECT_DOUBLE_EQ(traffic.sent[Axis::pp], std::max(ends, middle));
    }
  }
}

// The last rank sends most along tp, and has one neighbour.
TEST(PlanTraffic, SlicesGoAlongBothAxes) {
  Question q;
  q.model = find_model_shape("llama3-8b");
  q.axes.set(Axis::tp, 4), q.axes.set(Axis::pp, 4), q.grad_accum = 8;
  q.slice_hops = false;
  const Traffic whole = traffic_of(settle(q));
  q.slice_hops = true;
  const Traffic cut = traffic_of(settle(q));
  EXPECT_DOUBLE_EQ(cut.sent[Axis::pp], whole.sent[Axis::pp] / 4);
  EXPECT_DOUBLE_EQ(row(cut, "slices"), whole.sent[Axis::pp] / 2 * 3 / 4);
  EXPECT_DOUBLE_EQ(cut.sent[Axis::tp], whole.sent[Axis::tp] + row(cut, "slices"));
  // It is Megatron-LM's way, and nobody has to say so.
  q.slice_hops.reset();
  for (const Software software : {Software::megatron, Software::tessera, Software::pytorch}) {
    q.software = software;
    const bool slices = software == Software::megatron;
    EXPECT_EQ(traffic_of(settle(q)).sent[Axis::pp],
              slices ? cut.sent[Axis::pp] : whole.sent[Axis::pp]);
  }
  q.slice_hops = true, q.software = Software::megatron;
  // A sequence that is cut is in slices already.
  q.sequence_parallel = true;
  EXPECT_EQ(row(traffic_of(settle(q)), "slices"), 0);
  EXPECT_DOUBLE_EQ(traffic_of(settle(q)).sent[Axis::pp], cut.sent[Axis::pp]);
}

TEST(PlanTraffic, MoreChunksSendMore) {
  Question q;
  q.model = find_model_shape("llama3-8b");
  q.axes.set(Axis::pp, 4), q.grad_accum = 8;
  const double plain = traffic_of(settle(q)).sent[Axis::pp];
  q.chunks = 4;
  EXPECT_DOUBLE_EQ(traffic_of(settle(q)).sent[Axis::pp], 4 * plain);
  q.sequence_parallel = true, q.axes.set(Axis::tp, 8);
  EXPECT_DOUBLE_EQ(traffic_of(settle(q)).sent[Axis::pp], plain / 2);
  // A V turns round on the last rank, which sends nothing to itself.
  Question v;
  v.model = find_model_shape("llama3-8b");
  v.axes.set(Axis::pp, 4), v.grad_accum = 8, v.schedule = "zb-v";
  EXPECT_DOUBLE_EQ(traffic_of(settle(v)).sent[Axis::pp], 2 * plain);
}

// What `tessera plan` says of a step is what run.h says of the rank that sends most along an axis,
// and `tessera train` counts on it.
TEST(PlanTraffic, IsThatOfARun) {
  struct Cut {
    int dp, tp, pp;
    const char* schedule;
  };
  std::vector<ModelShape> shapes = {gpt_shape(8, 128, 8, 128, 32)};
  for (const std::int64_t kv_heads : {1, 2, 4, 8}) {
    ModelShape llama = find_model_shape("llama-tiny");
    llama.layers = 9, llama.hidden = 128, llama.heads = 8, llama.kv_heads = kv_heads;
    llama.ffn = 256, llama.vocab = 128;
    shapes.push_back(llama);
  }
  std::vector<Cut> cuts;
  for (const int dp : {1, 2, 3}) {
    for (const int tp : {1, 2, 4}) {
      for (const int pp : {1, 2, 4}) cuts.push_back({dp, tp, pp, "1f1b"});
      for (const char* name : {"gpipe", "interleaved", "zb-h1", "zb-v"}) {
        cuts.push_back({dp, tp, 2, name});
      }
    }
  }
  for (const ModelShape& shape : shapes) {
    for (const Cut& cut : cuts) {
      if (shape.tied && std::string(cut.schedule) == "zb-v") continue;  // refused in training
      for (int variant = 0; variant < 24; ++variant) {
        Question q;
        q.model = shape;
        q.seq = 16;
        q.axes.set_dp(cut.dp), q.axes.set(Axis::tp, cut.tp), q.axes.set(Axis::pp, cut.pp),
            q.schedule = cut.schedule;
        q.sequence_parallel = variant % 2 == 1;
        q.recompute = static_cast<Recompute>(variant / 2 % 3);
        q.zero = variant / 6;
        q.layout = parse_state_layout(variant % 5 == 0 ? "fp32" : "bf16-fp32grad");
        q.split = variant % 7 == 0 ? "work" : "even";
        q.micro_batch = 3, q.grad_accum = 4;
        q.slice_hops = false;  // as Tessera's ranks send
        q = settle(q);
        RunQuestion run;
        run.model = q.model;
        run.layout = q.layout;
        run.stage = q.zero;
        run.axes.set_dp(q.dp()), run.axes.set(Axis::tp, q.tp()), run.axes.set(Axis::pp, q.pp());
        run.micro_batch = q.micro_batch, run.seq = q.seq, run.accumulation = 4;
        run.policy = q.policy();
        run.recompute = q.recompute;
        run.sequence_parallel = q.sequence_parallel;
        run.schedule = q.schedule, run.chunks = q.chunks, run.split = q.split;
        const std::vector<Memory> by_rank = memory_by_rank(q);
        const int most_loaded = most_loaded_rank(by_rank);
        const Memory memory = by_rank[static_cast<std::size_t>(most_loaded)];
        const Traffic planned = traffic_of(q);
        double dp = 0, tp = 0, pp = 0, state = 0;
        for (int rank = 0; rank < q.pp(); ++rank) {
          run.place.set(Axis::pp, rank);
          const RunPlan plan = plan_run(run);
          dp = std::max(dp, real(plan.sent[Axis::dp_shard]));
          tp = std::max(tp, real(plan.sent[Axis::tp]));
          pp = std::max(pp, real(plan.sent[Axis::pp]));
          if (rank == most_loaded) state = real(plan.state());
        }
        const std::string what =
            str(shape.name, " kv ", shape.kv_heads, " dp ", q.dp(), " tp ", q.tp(), " pp ", q.pp(),
                " ", q.schedule, " zero ", q.zero, " ", name(q.recompute), q.sequence_parallel);
        EXPECT_DOUBLE_EQ(planned.sent[Axis::tp], tp) << what;
        EXPECT_DOUBLE_EQ(planned.sent[Axis::pp], pp) << what;
        // Over three ranks every parameter is padded to whole chunks.
        const double padding = q.dp() == 3 ? 0.05 : 1e-12;
        EXPECT_NEAR(planned.sent[Axis::dp_shard], dp, padding * dp) << what;
        EXPECT_NEAR(memory.params + memory.grads + memory.optimizer, state, padding * state)
            << what;
      }
    }
  }
}

// Gradients that travel in 16 bits are half; in low rank, r · (m + n) of each matrix. The plan and
// the run agree exactly where nothing is padded.
TEST(PlanTraffic, OfCompressedGradientsIsThatOfARun) {
  std::vector<ModelShape> shapes = {gpt_shape(4, 128, 8, 128, 32), find_model_shape("llama-tiny")};
  shapes[1].hidden = 128, shapes[1].ffn = 256, shapes[1].vocab = 128;
  for (const ModelShape& shape : shapes) {
    for (const int tp : {1, 2}) {
      for (const int pp : {1, 2}) {
        for (int zero = 0; zero <= 3; ++zero) {
          for (const char* how : {"none", "bf16", "fp16", "powersgd"}) {
            if (zero > 0 && std::string(how) == "powersgd") continue;
            Question q;
            q.model = shape;
            q.seq = 16, q.zero = zero, q.micro_batch = 2, q.grad_accum = 4;
            q.axes.set_dp(2), q.axes.set(Axis::tp, tp), q.axes.set(Axis::pp, pp);
            q.layout = parse_state_layout("fp32");
            q.grad_compression = parse_grad_compression(how);
            q.software = Software::tessera;
            q = settle(q);
            double sent = 0;
            for (int rank = 0; rank < pp; ++rank) {
              sent = std::max(
                  sent, real(plan_run(run_question(q, {{Axis::pp, rank}})).sent[Axis::dp_shard]));
            }
            const std::string what = str(shape.name, " tp ", tp, " pp ", pp, " zero ", zero, how);
            const Traffic traffic = traffic_of(q);
            EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], sent) << what;
            Question plain = q;
            plain.grad_compression = GradCompression::none;
            const double whole = row(traffic_of(plain), "of gradients");
            const double got = row(traffic, "of gradients");
            if (how[0] == 'n') {
              EXPECT_DOUBLE_EQ(got, whole) << what;
            } else if (how[0] == 'p') {
              EXPECT_LT(got, whole / 2) << what;
            } else {
              EXPECT_DOUBLE_EQ(got, whole / 2) << what;
            }
          }
        }
      }
    }
  }
}

TEST(PlanTraffic, OfPowerSgdIsTheFactors) {
  Question q;
  q.model = gpt_shape(2, 64, 4, 256, 32);
  q.axes.set_dp(2);
  q.layout = parse_state_layout("fp32");
  q.grad_compression = GradCompression::powersgd;
  for (const int rank : {1, 2, 4}) {
    q.power_sgd.rank = rank;
    double elements = 0;
    for (const ParamSpec& spec : model_params(q.model, 1)) {
      double all = 1;
      for (const std::int64_t size : spec.shape) all *= real(size);
      const double low =
          spec.shape.size() < 2 ? all : rank * (real(spec.shape[0]) + all / real(spec.shape[0]));
      elements += spec.shape.size() >= 2 && 2 * low <= all ? low : all;
    }
    EXPECT_DOUBLE_EQ(traffic_of(settle(q)).sent[Axis::dp_shard], 4 * elements)
        << rank;  // 2 · (2 − 1) / 2
  }
}

TEST(PlanTraffic, CompressionThatCannotBeIsRefused) {
  const auto refused = [](const std::map<std::string, std::string>& more) {
    Settings settings;
    settings.set("model", "gpt2-xl");
    settings.set("dp", "4");
    settings.set("layout", "fp32");
    settings.set("grad-compression", "powersgd");
    for (const auto& [key, value] : more) settings.set(key, value);
    try {
      settings.question(built_in());
      return std::string();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused({}), "");
  EXPECT_NE(refused({{"zero", "1"}}).find("--zero 1"), std::string::npos);
  EXPECT_NE(refused({{"layout", "bf16"}}).find("--layout bf16"), std::string::npos);
  EXPECT_NE(refused({{"grad-reduce", "each"}}).find("--grad-reduce each"), std::string::npos);
  for (const char* how : {"bf16", "fp16"}) {
    EXPECT_EQ(refused({{"grad-compression", how}}), "");
    EXPECT_NE(refused({{"grad-compression", how}, {"layout", "bf16"}}).find("16 bits already"),
              std::string::npos);
  }
  EXPECT_NE(refused({{"powersgd-rank", "0"}}).find("--powersgd-rank"), std::string::npos);
}

TEST(PlanTraffic, RowsAddUpByAxis) {
  Question q;
  q.model = find_model_shape("gpt3-6.7b");
  q.axes.set_dp(4), q.axes.set(Axis::tp, 2), q.axes.set(Axis::pp, 2), q.grad_accum = 4, q.zero = 2;
  q.axes.set_given(Axis::dp_replicate, 2);
  const Traffic traffic = traffic_of(settle(q));
  PerAxis<double> sent;
  for (const TrafficRow& each : traffic.rows) sent[each.axis] += each.bytes;
  for (const Axis axis : kAllAxes) {
    EXPECT_GT(sent[axis], 0) << axis_name(axis);
    EXPECT_DOUBLE_EQ(sent[axis], traffic.sent[axis]) << axis_name(axis);
  }
}

}  // namespace
}  // namespace tessera::planner
