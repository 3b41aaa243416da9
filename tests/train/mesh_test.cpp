// The oracle for all parallelism together: the same seeded model on any mesh, at any stage, with
// any schedule, trains as in one process.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

constexpr int kSteps = 4;  // optimizer state and bias correction matter from the second step on

RunConfig small(const std::string& model) {
  RunConfig config = small_run(model, kSteps, 1e-2);
  if (model.starts_with("qwen")) {  // has its own biases, padding and dropout
    config.hidden = 48;
    config.vocab = 61;
    config.dropout = config.attention_dropout = 0.1;
  }
  return config;
}

void expect_same(const RunConfig& config) {
  static std::map<std::string, Outcomes> alone;
  if (!alone.contains(config.model_name))
    alone[config.model_name] = run_all(small(config.model_name), 1);
  train::expect_same(config, run_all(config, 1), alone[config.model_name]);
}

const std::vector<Cut> kMeshes = {{1, 2, 1}, {1, 1, 2}, {1, 2, 2}, {2, 2, 1}, {2, 1, 2}, {2, 2, 2}};

TEST(Mesh, EveryMeshAndStageMatchesOneProcess) {
  int turn = 0;
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const Cut& mesh : kMeshes) {
      for (int stage = 0; stage < 4; ++stage) {
        RunConfig config = on_cut(small(model), mesh, ++turn % 2 == 0 && mesh.pp == 1 ? 1 : 4);
        config.zero = stage;
        config.sequence_parallel = mesh.tp > 1 && turn % 3 == 0;
        config.set("recompute", turn % 5 == 0 ? "full" : "none");
        expect_same(config);
      }
    }
  }
}

TEST(Mesh, DropoutIsEqualOnEveryMesh) {
  int stage = 0;
  for (const Cut& mesh : {Cut{2, 1, 1}, Cut{1, 2, 1}, Cut{1, 1, 2}, Cut{2, 2, 1}}) {
    RunConfig config = on_cut(small("qwen2.5-1.5b"), mesh, mesh.pp == 1 ? 2 : 4);
    config.zero = stage++;
    config.sequence_parallel = mesh.tp > 1;
    config.set("recompute", stage % 2 == 0 ? "selective" : "full");
    expect_same(config);
  }
}

TEST(Mesh, AnySplitOfLayersMatchesOneProcess) {
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const char* split : {"work", "3,1", "1,3"}) {
      RunConfig config = on_cut(small(model), {2, 1, 2}, 4);
      config.zero = 2;
      config.split = split;
      expect_same(config);
    }
  }
}

TEST(Mesh, EveryScheduleMatchesOneProcess) {
  for (const Cut& mesh : {Cut{1, 1, 2}, Cut{2, 1, 2}, Cut{1, 2, 2}}) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
      for (int stage = 0; stage < 4; ++stage) {
        const std::string name = schedule;
        if (name.starts_with("zb") && stage == 3) continue;  // rejected, see below
        RunConfig config = on_cut(small(name == "zb-v" ? "llama-tiny" : "gpt-tiny"), mesh, 4);
        config.zero = stage;
        config.set("schedule", schedule);
        config.chunks = name == "interleaved" ? 2 : 1;
        expect_same(config);
      }
    }
  }
}

TEST(Mesh, OverlapMatchesOneProcess) {
  int turn = 0;
  for (const Cut& mesh : {Cut{1, 2, 1}, Cut{2, 2, 2}}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (const bool sequence : {true, false}) {
        RunConfig config = on_cut(small(++turn % 2 == 0 ? "gpt-tiny" : "llama-tiny"), mesh, 4);
        config.zero = turn % 4;
        config.overlap_tp = true;
        config.sequence_parallel = sequence;
        config.set("recompute", recompute);
        expect_same(config);
      }
    }
  }
  // Deferred weight gradients.
  RunConfig config = on_cut(small("gpt-tiny"), {1, 2, 2}, 4);
  config.schedule = ScheduleChoice::zb_h1;
  config.overlap_tp = config.sequence_parallel = true;
  expect_same(config);
}

TEST(Mesh, ReducePoliciesAndRecomputationWorkInPipelines) {
  for (const char* policy : {"each", "last"}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (int stage = 0; stage < 4; ++stage) {
        RunConfig config = on_cut(small("gpt-tiny"), {2, 1, 2}, 4);
        config.zero = stage;
        config.set("grad-reduce", policy);
        config.set("recompute", recompute);
        expect_same(config);
      }
    }
  }
}

TEST(Mesh, RejectsUnsupportedMeshes) {
  const auto refused = [](const std::function<void(RunConfig&)>& change, int ranks) {
    RunConfig config = on_cut(small("gpt-tiny"), {}, 4);
    config.axes.set_dp(0);
    change(config);
    int count = 0;
    over(ranks, [&](const comm::Group& world) {
      try {
        const Trainer trainer(config, world);
      } catch (const UsageError&) {
        if (world.rank() == 0) ++count;
      }
    });
    return count == 1;
  };
  EXPECT_TRUE(refused([](RunConfig& c) { c.axes.set(Axis::tp, 3); }, 3)) << "heads % tp";
  EXPECT_TRUE(refused([](RunConfig& c) { c.overlap_tp = true; }, 2)) << "no tp to overlap";
  EXPECT_TRUE(refused([](RunConfig& c) { c.axes.set(Axis::pp, 8); }, 8)) << "layers < pp";
  EXPECT_TRUE(refused([](RunConfig& c) { c.axes.set(Axis::tp, 2); }, 3)) << "ranks";
  EXPECT_TRUE(refused(
      [](RunConfig& c) {
        c.axes.set(Axis::tp, 2);
        c.axes.set_dp(2);
      },
      2))
      << "world != dp · tp · pp";
  EXPECT_TRUE(refused(
      [](RunConfig& c) {
        c.axes.set(Axis::pp, 2);
        c.schedule = ScheduleChoice::interleaved;
        c.chunks = 2;
        c.micro_batch = kBatch;
      },
      2))
      << "fewer micro-batches than stages";
  EXPECT_TRUE(refused(
      [](RunConfig& c) {
        c.axes.set(Axis::pp, 2);
        c.schedule = ScheduleChoice::zb_h1;
        c.zero = 3;
      },
      2));
  EXPECT_TRUE(refused(
      [](RunConfig& c) {
        c.axes.set(Axis::pp, 2);
        c.schedule = ScheduleChoice::zb_v;
      },
      2))
      << "tied, first and last stage on one rank";
}

}  // namespace
}  // namespace tessera::train
