#include "tessera/planner/run_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "tessera/core/errors.h"
#include "tessera/planner/parameters.h"
#include "tessera/schedule/schedule.h"

namespace tessera::planner {
namespace {

RunConfig about(const char* model) {
  RunConfig q = RunConfig::for_plan();
  q.model = find_model_shape(model);
  q.hardware.per_node = 8;
  return q;
}

RunConfig with(const std::function<void(RunConfig&)>& change, const char* model = "gpt2-xl") {
  RunConfig q = about(model);
  change(q);
  return q;
}

TEST(ResolvePlan, FillsInOmittedSettings) {
  RunConfig q = resolve(about("gpt2-xl"));
  EXPECT_EQ(q.seq, 1024);
  EXPECT_EQ(q.dp(), 1);
  EXPECT_EQ(q.micros(), 1);
  EXPECT_EQ(q.global_batch, 1);
  EXPECT_EQ(q.nodes, 1);
  EXPECT_EQ(q.per_node, 8);
  EXPECT_EQ(q.chunks, 1);

  q = resolve(
      with([](RunConfig& w) { w.axes.set_dp(8), w.micro_batch = 4, w.global_batch = 1024; }));
  EXPECT_EQ(q.micros(), 32);
  q = resolve(
      with([](RunConfig& w) { w.axes.set_dp(8), w.grad_accum = 32, w.global_batch = 1024; }));
  EXPECT_EQ(q.micro_batch, 4);
  q = resolve(with([](RunConfig& w) { w.axes.set_dp(16), w.micro_batch = 2, w.grad_accum = 4; }));
  EXPECT_EQ(q.global_batch, 128);
  EXPECT_EQ(q.nodes, 2);
  q = resolve(
      with([](RunConfig& w) { w.gpus = 128, w.axes.set(Axis::tp, 8), w.axes.set(Axis::pp, 4); },
           "llama2-70b"));
  EXPECT_EQ(q.dp(), 4);
  q = resolve(with([](RunConfig& w) { w.nodes = 4, w.axes.set(Axis::tp, 4); }, "gpt2-774m"));
  EXPECT_EQ(q.dp(), 8);
  EXPECT_THROW(resolve(with([](RunConfig& w) { w.nodes = 4, w.axes.set(Axis::tp, 5); })),
               UsageError);
  // The last node may be partly filled.
  q = resolve(with([](RunConfig& w) { w.gpus = 20; }));
  EXPECT_EQ(q.nodes, 3);
  EXPECT_EQ(resolve(q).nodes, 3);
}

TEST(ResolvePlan, IsIdempotent) {
  for (const ModelShape& model : model_shapes()) {
    const RunConfig once = resolve(about(model.name.c_str()));
    const RunConfig twice = resolve(once);
    EXPECT_EQ(once.dp(), twice.dp());
    EXPECT_EQ(once.micros(), twice.micros());
    EXPECT_EQ(once.model.vocab, twice.model.vocab);
    EXPECT_EQ(once.seq, twice.seq);
  }
}

// Beyond its context, a model with dynamic rotary positions differs for every length. Training
// refuses this, and so does the planner.
TEST(ResolvePlan, RefusesDynamicRotaryPositionsBeyondTheContext) {
  const auto asked = [](std::int64_t seq, RotaryScaling::Kind kind) {
    return with(
        [&](RunConfig& w) {
          w.seq = seq, w.model.context = 2048;
          w.model.rotary_scaling.kind = kind, w.model.rotary_scaling.factor = 2;
        },
        "llama2-7b");
  };
  constexpr auto kDynamic = RotaryScaling::Kind::dynamic, kLinear = RotaryScaling::Kind::linear;
  EXPECT_EQ(resolve(asked(0, kDynamic)).seq, 2048);
  EXPECT_EQ(resolve(asked(2048, kDynamic)).seq, 2048);
  EXPECT_EQ(resolve(asked(4096, kLinear)).seq, 4096);
  try {
    resolve(asked(2049, kDynamic));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("--seq: got 2049"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("at most 2048"), std::string::npos) << error.what();
  }
}

TEST(ResolvePlan, PadsTheVocabularyOnlyWhenAsked) {
  EXPECT_EQ(resolve(about("gpt2-xl")).model.vocab, 50257);
  EXPECT_EQ(resolve(with([](RunConfig& w) { w.vocab_multiple = 128; })).model.vocab, 50304);
  const RunConfig q = resolve(
      with([](RunConfig& w) { w.vocab_multiple = 128, w.axes.set(Axis::tp, 4); }, "gpt2-124m"));
  EXPECT_EQ(q.model.vocab, 50688);
}

TEST(ResolvePlan, SelectsInterleavedForSeveralChunks) {
  const RunConfig q = resolve(with(
      [](RunConfig& w) { w.axes.set(Axis::pp, 2), w.chunks = 3, w.grad_accum = 4; }, "gpt2-124m"));
  EXPECT_EQ(q.schedule, ScheduleChoice::interleaved);
  EXPECT_EQ(resolve(with([](RunConfig& w) {
              w.axes.set(Axis::pp, 2), w.schedule = ScheduleChoice::zb_v;
            })).chunks,
            2);
}

TEST(ResolvePlan, RefusesInvalidConfigurations) {
  const std::vector<std::pair<const char*, std::function<void(RunConfig&)>>> cases = {
      {"--tp", [](RunConfig& q) { q.axes.set(Axis::tp, 0); }},
      {"--tp: got 2, which does not divide 25 heads",
       [](RunConfig& q) { q.axes.set(Axis::tp, 2); }},
      {"--pp", [](RunConfig& q) { q.axes.set(Axis::pp, 0); }},
      {"--gpus: got 9, but dp 4", [](RunConfig& q) { q.gpus = 9, q.axes.set_dp(4); }},
      {"does not divide 9 GPUs", [](RunConfig& q) { q.gpus = 9, q.axes.set(Axis::pp, 4); }},
      {"--nodes", [](RunConfig& q) { q.nodes = 1, q.axes.set_dp(64); }},
      {"--nodes: got 3, which does not divide the 8 GPUs",
       [](RunConfig& q) { q.nodes = 3, q.gpus = 8; }},
      {"--layers: got 48 for pp 64", [](RunConfig& q) { q.axes.set(Axis::pp, 64); }},
      {"for pp 16 · chunks 4",
       [](RunConfig& q) { q.axes.set(Axis::pp, 16), q.chunks = 4, q.grad_accum = 16; }},
      {"--chunks", [](RunConfig& q) { q.chunks = 2, q.schedule = ScheduleChoice::gpipe; }},
      {"as many micro-batches as pp",
       [](RunConfig& q) { q.axes.set(Axis::pp, 4), q.schedule = ScheduleChoice::interleaved; }},
      {"--global-batch: got 10", [](RunConfig& q) { q.global_batch = 10, q.micro_batch = 4; }},
      {"--grad-accum: got 3", [](RunConfig& q) { q.global_batch = 8, q.grad_accum = 3; }},
      {"--micro-batch", [](RunConfig& q) { q.micro_batch = -1; }},
      {"--global-batch",
       [](RunConfig& q) { q.micro_batch = 1'000'000'000, q.grad_accum = 1'000'000'000; }},
      {"--seq", [](RunConfig& q) { q.seq = -5; }},
      {"--layers is missing", [](RunConfig& q) { q.model.layers = 0; }},
      {"stage", [](RunConfig& q) { q.zero = 4; }},
      {"--bucket-size", [](RunConfig& q) { q.bucket_bytes = -1; }},
      {"--params", [](RunConfig& q) { q.params = -3; }},
      {"--params", [](RunConfig& q) { q.params = 1e9; }},
  };
  for (const auto& [expected, change] : cases) {
    try {
      resolve(with(change));
      ADD_FAILURE() << expected << ": was accepted";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
}

TEST(ResolvePlan, AcceptsUnusualButValidConfigurations) {
  resolve(with([](RunConfig& q) { q.axes.set(Axis::pp, 8), q.grad_accum = 2; }));  // K < P
  resolve(with([](RunConfig& q) { q.axes.set(Axis::tp, 16); }, "gpt3-1.3b"));  // tp across hosts
}

// With the head included, no other split gives the busiest stage less work.
TEST(Split, BalancesWorkIncludingTheHead) {
  for (const char* name : {"gpt2-124m", "gpt2-xl", "llama3-8b"}) {
    const ModelShape shape = find_model_shape(name);
    const double layer = static_cast<double>(shape.layer_params());
    const double head = static_cast<double>(shape.vocab * shape.hidden);
    for (int stages = 2; stages <= 6; ++stages) {
      const std::vector<int> counts = layers_of_stages(shape, stages, "work");
      const auto most = [&](const std::vector<int>& layers) {
        double worst = 0;
        for (std::size_t s = 0; s < layers.size(); ++s) {
          worst = std::max(worst, layers[s] * layer + (s + 1 == layers.size() ? head : 0));
        }
        return worst;
      };
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), shape.layers);
      double best = 1e300;  // the other layers are split evenly
      for (int last = 1; last <= shape.layers - stages + 1; ++last) {
        const auto rest = static_cast<int>(shape.layers) - last;
        std::vector<int> other(static_cast<std::size_t>(stages), rest / (stages - 1));
        other[0] = (rest + stages - 2) / (stages - 1);
        other.back() = last;
        best = std::min(best, most(other));
      }
      EXPECT_DOUBLE_EQ(most(counts), best) << name << ", " << stages;
      EXPECT_LE(best, most(layers_of_stages(shape, stages, "even")));
    }
  }
}

TEST(Split, ExplicitCountsMustCoverEveryLayerOnce) {
  const ModelShape shape = find_model_shape("gpt2-124m");  // 12 layers
  EXPECT_EQ(layers_of_stages(shape, 3, "5,4,3"), (std::vector<int>{5, 4, 3}));
  const ModelPart part = part_of_stage({5, 4, 3}, 1);
  EXPECT_EQ(part.first_layer, 5);
  EXPECT_EQ(part.last_layer, 9);
  EXPECT_FALSE(part.embedding || part.head);
  for (const char* wrong : {"5,4", "5,4,2", "6,6,0", "13,-1,0", "5,4,3,", ",12", "", "evn",
                            "5 ,4,3", "99999999999,4,3"}) {
    try {
      layers_of_stages(shape, 3, wrong);
      ADD_FAILURE() << wrong;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("--split"), std::string::npos) << error.what();
    }
  }
}

// Every layer once, embedding first, head last; in the same positions as in the schedule.
TEST(ChunkLayers, CoverTheModelOnce) {
  for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
    for (int pp = 1; pp <= 16; ++pp) {
      RunConfig q = about("gpt2-xl");
      q.axes.set(Axis::pp, pp);
      q.schedule = *find_named<ScheduleChoice>(name);
      q.grad_accum = 16;
      q = resolve(q);
      const auto shares = chunk_layers(q);
      const schedule::Schedule s = schedule::make(name, pp, 16, q.chunks);
      std::int64_t layers = 0, least = 1000, most = 0;
      int embeddings = 0, heads = 0;
      for (int r = 0; r < pp; ++r) {
        for (int c = 0; c < q.chunks; ++c) {
          const StageLayers& share =
              shares[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)];
          EXPECT_EQ(stage_of(q, r, c), s.stage(r, c));
          EXPECT_EQ(share.embedding, s.stage(r, c) == 0);
          EXPECT_EQ(share.head, s.stage(r, c) == s.stage_count() - 1);
          layers += share.layers;
          least = std::min(least, share.layers);
          most = std::max(most, share.layers);
          embeddings += share.embedding;
          heads += share.head;
        }
      }
      EXPECT_EQ(layers, 48);
      EXPECT_LE(most - least, 1);
      EXPECT_EQ(embeddings, 1);
      EXPECT_EQ(heads, 1);
    }
  }
}

}  // namespace
}  // namespace tessera::planner
