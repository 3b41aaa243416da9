// The oracle for all parallelism together: the same seeded model on any mesh, at any stage, with
// any schedule, trains as in one process.

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tessera/core/errors.h"
#include "tests/combinations.h"
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

const std::vector<const char*> kRecompute = {"none", "selective", "full"};
const std::vector<int> kStages = {0, 1, 2, 3};

TEST(Mesh, EveryMeshAndStageMatchesOneProcess) {
  const auto allowed = [](const char*, int dp, int tp, int pp, int, const char*, bool sequence,
                          int accumulation) {
    return dp * tp * pp > 1 && (tp > 1 || !sequence) && (pp == 1 || accumulation == 4);
  };
  for (const auto& [model, dp, tp, pp, stage, recompute, sequence, accumulation] :
       combinations_where(allowed, std::vector{"gpt-tiny", "llama-tiny"}, std::vector{1, 2},
                          std::vector{1, 2}, std::vector{1, 2}, kStages, kRecompute,
                          std::vector{false, true}, std::vector{1, 4})) {
    RunConfig config = on_cut(small(model), {dp, tp, pp}, accumulation);
    config.zero = stage;
    config.sequence_parallel = sequence;
    config.set("recompute", recompute);
    expect_same(config);
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

TEST(Mesh, EveryScheduleAndReducePolicyMatchesOneProcess) {
  const auto allowed = [](auto&&, const std::string& schedule, int stage, auto&&...) {
    return !schedule.starts_with("zb") || stage < 3;  // rejected, see below
  };
  for (const auto& [mesh, schedule, stage, policy, recompute] :
       combinations_where(allowed, std::vector{Cut{1, 1, 2}, Cut{2, 1, 2}, Cut{1, 2, 2}},
                          std::vector<std::string>{"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"},
                          kStages, std::vector{"each", "last"}, kRecompute)) {
    RunConfig config = on_cut(small(schedule == "zb-v" ? "llama-tiny" : "gpt-tiny"), mesh, 4);
    config.zero = stage;
    config.set("schedule", schedule);
    config.set("grad-reduce", policy);
    config.set("recompute", recompute);
    config.chunks = schedule == "interleaved" ? 2 : 1;
    expect_same(config);
  }
}

TEST(Mesh, OverlapMatchesOneProcess) {
  for (const auto& [model, mesh, recompute, sequence, stage] :
       combinations(std::vector{"gpt-tiny", "llama-tiny"}, std::vector{Cut{1, 2, 1}, Cut{2, 2, 2}},
                    kRecompute, std::vector{true, false}, kStages)) {
    RunConfig config = on_cut(small(model), mesh, 4);
    config.zero = stage;
    config.overlap_tp = true;
    config.sequence_parallel = sequence;
    config.set("recompute", recompute);
    expect_same(config);
  }
  // Deferred weight gradients.
  RunConfig config = on_cut(small("gpt-tiny"), {1, 2, 2}, 4);
  config.schedule = ScheduleChoice::zb_h1;
  config.overlap_tp = config.sequence_parallel = true;
  expect_same(config);
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
