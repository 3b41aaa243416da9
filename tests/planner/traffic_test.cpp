#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/fields.h"
#include "tessera/planner/formulas.h"
#include "tessera/planner/parameters.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/rank_load.h"
#include "tessera/planner/run.h"
#include "tests/planner/built_in.h"

namespace tessera::planner {
namespace {

double row(const Traffic& traffic, const std::string& what) {
  for (const TrafficRow& each : traffic.rows) {
    if (each.what.find(what) != std::string::npos) return each.bytes;
  }
  return 0;
}

TEST(PlanTraffic, DataParallelMatchesMultiplesOfTheModel) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const int k : {1, 4}) {
      RunConfig q = RunConfig::for_plan();
      q.params = 10e9, q.axes.set_dp(64), q.zero = stage, q.grad_accum = k;
      const Traffic traffic = traffic_of(resolve(q));
      const double multiples[] = {2, 2, 1.0 + k, 3.0 * k};
      EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], multiples[stage] * 63 / 64 * 20 * kGB);
      EXPECT_DOUBLE_EQ(traffic.total(), traffic.sent[Axis::dp_shard]);
    }
  }
}

TEST(PlanTraffic, ReportsBothReducePolicies) {
  RunConfig q = RunConfig::for_plan();
  q.params = 1e9, q.axes.set_dp(4), q.zero = 2, q.grad_accum = 8;
  const Traffic traffic = traffic_of(resolve(q));
  const double hop = 0.75 * 2e9;
  EXPECT_DOUBLE_EQ(traffic.dp_each, 9 * hop);
  EXPECT_DOUBLE_EQ(traffic.dp_last, 2 * hop);
  EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], traffic.dp_each);
}

TEST(PlanTraffic, TensorParallelCarriesActivations) {
  RunConfig q = RunConfig::for_plan();
  q.model = gpt_shape(96, 8192, 64, 51200, 2048);
  q.axes.set(Axis::tp, 8);
  const Traffic traffic = traffic_of(resolve(q));
  EXPECT_NEAR(row(traffic, "of activations") / kGB, 22.5, 0.1);
  const double pass = ring_all_reduce_bytes(2048.0 * 8192 * 2, 8);
  EXPECT_DOUBLE_EQ(row(traffic, "embeddings"), pass);
  EXPECT_DOUBLE_EQ(row(traffic, "loss"), 3 * ring_all_reduce_bytes(4 * 2048, 8));
  q.recompute = Recompute::full;
  EXPECT_DOUBLE_EQ(row(traffic_of(resolve(q)), "of activations"),
                   1.5 * row(traffic, "of activations"));
  // Sequence parallelism adds only the sums of norm gradients.
  q.recompute = Recompute::none;
  q.sequence_parallel = true;
  const Traffic cut = traffic_of(resolve(q));
  EXPECT_DOUBLE_EQ(row(cut, "norms"), 96.5 * ring_all_reduce_bytes(4 * 8192 * 2, 8));
  EXPECT_DOUBLE_EQ(cut.sent[Axis::tp], traffic.sent[Axis::tp] + row(cut, "norms"));
}

TEST(PlanTraffic, PipelineSendsBoundariesAndTiedGradients) {
  for (const int pp : {2, 4}) {
    for (const int k : {1, 8}) {
      RunConfig q = RunConfig::for_plan();
      q.model = gpt_shape(8, 1024, 16, 50257, 512);
      q.axes.set(Axis::pp, pp), q.grad_accum = k, q.micro_batch = 2;
      const double boundary = 512.0 * 2 * 1024 * 2;
      const double tied = 50257.0 * 1024 * 2;  // two ranks: (2-1)/2 · 2
      const Traffic traffic = traffic_of(resolve(q));
      // Middle ranks send in both directions. With two stages, each sends in one direction and
      // shares the embedding.
      const double ends = k * boundary + tied, middle = pp > 2 ? 2 * k * boundary : 0;
      EXPECT_DOUBLE_EQ(traffic.sent[Axis::pp], std::max(ends, middle));
    }
  }
}

// The last rank sends most along tp, and has one neighbor.
TEST(PlanTraffic, SlicesReducePpTrafficAndAddTpTraffic) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("llama3-8b");
  q.axes.set(Axis::tp, 4), q.axes.set(Axis::pp, 4), q.grad_accum = 8;
  q.slice_hops = false;
  const Traffic whole = traffic_of(resolve(q));
  q.slice_hops = true;
  const Traffic cut = traffic_of(resolve(q));
  EXPECT_DOUBLE_EQ(cut.sent[Axis::pp], whole.sent[Axis::pp] / 4);
  EXPECT_DOUBLE_EQ(row(cut, "slices"), whole.sent[Axis::pp] / 2 * 3 / 4);
  EXPECT_DOUBLE_EQ(cut.sent[Axis::tp], whole.sent[Axis::tp] + row(cut, "slices"));
  // This is the default for Megatron-LM.
  q.slice_hops.reset();
  for (const Software software : {Software::megatron, Software::tessera, Software::pytorch}) {
    q.software = software;
    const bool slices = software == Software::megatron;
    EXPECT_EQ(traffic_of(resolve(q)).sent[Axis::pp],
              slices ? cut.sent[Axis::pp] : whole.sent[Axis::pp]);
  }
  q.slice_hops = true, q.software = Software::megatron;
  // With sequence parallelism, activations are already sliced.
  q.sequence_parallel = true;
  EXPECT_EQ(row(traffic_of(resolve(q)), "slices"), 0);
  EXPECT_DOUBLE_EQ(traffic_of(resolve(q)).sent[Axis::pp], cut.sent[Axis::pp]);
}

TEST(PlanTraffic, MoreChunksSendMore) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("llama3-8b");
  q.axes.set(Axis::pp, 4), q.grad_accum = 8;
  const double plain = traffic_of(resolve(q)).sent[Axis::pp];
  q.chunks = 4;
  EXPECT_DOUBLE_EQ(traffic_of(resolve(q)).sent[Axis::pp], 4 * plain);
  q.sequence_parallel = true, q.axes.set(Axis::tp, 8);
  EXPECT_DOUBLE_EQ(traffic_of(resolve(q)).sent[Axis::pp], plain / 2);
  // A V-shaped schedule turns around on the last rank, which sends nothing to itself.
  RunConfig v = RunConfig::for_plan();
  v.model = find_model_shape("llama3-8b");
  v.axes.set(Axis::pp, 4), v.grad_accum = 8, v.schedule = ScheduleChoice::zb_v;
  EXPECT_DOUBLE_EQ(traffic_of(resolve(v)).sent[Axis::pp], 2 * plain);
}

// `tessera plan` reports the same traffic as run.h for the rank that sends most along each axis.
// `tessera train` relies on it.
TEST(PlanTraffic, EqualsThatOfARun) {
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
        RunConfig q = RunConfig::for_plan();
        q.model = shape;
        q.seq = 16;
        q.axes.set_dp(cut.dp), q.axes.set(Axis::tp, cut.tp), q.axes.set(Axis::pp, cut.pp),
            q.schedule = *find_named<ScheduleChoice>(cut.schedule);
        q.sequence_parallel = variant % 2 == 1;
        q.recompute = static_cast<Recompute>(variant / 2 % 3);
        q.zero = variant / 6;
        q.layout = parse_state_layout(variant % 5 == 0 ? "fp32" : "bf16-fp32grad");
        q.split = variant % 7 == 0 ? "work" : "even";
        q.micro_batch = 3, q.grad_accum = 4;
        q.slice_hops = false;  // as in Tessera
        q = resolve(q);
        RunConfig run = q;
        run.software = Software::tessera, run.gpu = false, run.gather = Gather::copy;
        const std::vector<Memory> by_rank = memory_by_rank(q);
        const int most_loaded = most_loaded_rank(by_rank);
        const Memory memory = by_rank[static_cast<std::size_t>(most_loaded)];
        const Traffic planned = traffic_of(q);
        double dp = 0, tp = 0, pp = 0, state = 0;
        for (int rank = 0; rank < q.pp(); ++rank) {
          const RunPlan plan = plan_run(run, {{Axis::pp, rank}});
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
        // With three ranks, every parameter is padded to whole chunks.
        const double padding = q.dp() == 3 ? 0.05 : 1e-12;
        EXPECT_NEAR(planned.sent[Axis::dp_shard], dp, padding * dp) << what;
        EXPECT_NEAR(memory.params + memory.grads + memory.optimizer, state, padding * state)
            << what;
      }
    }
  }
}

// Gradients sent in 16 bits have half the bytes; low-rank gradients have r · (m + n) elements per
// matrix. The plan and the run agree exactly without padding.
TEST(PlanTraffic, CompressedGradientsSendTheBytesOfARun) {
  std::vector<ModelShape> shapes = {gpt_shape(4, 128, 8, 128, 32), find_model_shape("llama-tiny")};
  shapes[1].hidden = 128, shapes[1].ffn = 256, shapes[1].vocab = 128;
  for (const ModelShape& shape : shapes) {
    for (const int tp : {1, 2}) {
      for (const int pp : {1, 2}) {
        for (int zero = 0; zero <= 3; ++zero) {
          for (const char* how : {"none", "bf16", "fp16"}) {
            RunConfig q = RunConfig::for_plan();
            q.model = shape;
            q.seq = 16, q.zero = zero, q.micro_batch = 2, q.grad_accum = 4;
            q.axes.set_dp(2), q.axes.set(Axis::tp, tp), q.axes.set(Axis::pp, pp);
            q.layout = parse_state_layout("fp32");
            q.grad_compression = *find_named<GradCompression>(how);
            q.software = Software::tessera;
            q = resolve(q);
            double sent = 0;
            for (int rank = 0; rank < pp; ++rank) {
              sent = std::max(sent, real(plan_run(q, {{Axis::pp, rank}}).sent[Axis::dp_shard]));
            }
            const std::string what = str(shape.name, " tp ", tp, " pp ", pp, " zero ", zero, how);
            const Traffic traffic = traffic_of(q);
            EXPECT_DOUBLE_EQ(traffic.sent[Axis::dp_shard], sent) << what;
            RunConfig plain = q;
            plain.grad_compression = GradCompression::none;
            const double whole = row(traffic_of(plain), "of gradients");
            const double got = row(traffic, "of gradients");
            EXPECT_DOUBLE_EQ(got, how[0] == 'n' ? whole : whole / 2) << what;
          }
        }
      }
    }
  }
}

TEST(PlanTraffic, RefusesUnsupportedCompression) {
  const auto refused = [](const std::map<std::string, std::string>& more) {
    RunConfig settings = RunConfig::for_plan();
    settings.set("model", "gpt2-xl");
    settings.set("dp", "4");
    settings.set("layout", "fp32");
    try {
      for (const auto& [key, value] : more) settings.set(key, value);
      resolve(look_up(settings, built_in()));
      return std::string();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
  };
  for (const char* how : {"bf16", "fp16"}) {
    EXPECT_EQ(refused({{"grad-compression", how}}), "");
    EXPECT_NE(refused({{"grad-compression", how}, {"layout", "bf16"}}).find("16 bits already"),
              std::string::npos);
  }
  for (const auto& [key, value] :
       {std::pair("grad-compression", "powersgd"), std::pair("powersgd-rank", "4"),
        std::pair("powersgd_warmup", "10")}) {
    const std::string error = refused({{key, value}});
    EXPECT_NE(error.find("PowerSGD has moved to examples/power_sgd.cpp"), std::string::npos) << key;
    EXPECT_EQ(error.find("Delete the keys powersgd-rank and powersgd-warmup.") != std::string::npos,
              std::string_view(key).starts_with("powersgd"))
        << error;
  }
}

TEST(PlanTraffic, RowsAddUpByAxis) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape("mixtral-8x7b");
  for (const Axis axis : {Axis::tp, Axis::cp, Axis::pp, Axis::ep}) q.axes.set(axis, 2);
  q.axes.set_dp(4), q.grad_accum = 4, q.zero = 2;
  q.axes.set_given(Axis::dp_replicate, 2);
  const Traffic traffic = traffic_of(resolve(q));
  PerAxis<double> sent;
  for (const TrafficRow& each : traffic.rows) sent[each.axis] += each.bytes;
  for (const Axis axis : kAllAxes) {
    EXPECT_GT(sent[axis], 0) << axis_name(axis);
    EXPECT_DOUBLE_EQ(sent[axis], traffic.sent[axis]) << axis_name(axis);
  }
}

}  // namespace
}  // namespace tessera::planner
