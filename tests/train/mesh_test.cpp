// The oracle of all parallelism together: the same seeded model on any mesh, at any stage, with any
// schedule, trains as it does in one process.

#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace {

constexpr std::int64_t kGlobalBatch = 8;
constexpr int kSteps = 4;  // the optimizer's state and its bias correction count from the second on

struct Mesh {
  int dp = 1, tp = 1, pp = 1;
};

TrainConfig small(const std::string& model) {
  TrainConfig config;
  config.model = model;
  config.layers = 4;
  config.hidden = 32;
  config.heads = 4;
  config.vocab = 64;
  config.seq = 16;
  config.steps = kSteps;
  config.global_batch = kGlobalBatch;
  config.micro_batch = kGlobalBatch;
  config.lr = 1e-2;
  config.warmup = 0;
  config.seed = 5;
  if (model.starts_with("qwen")) {  // with biases of its own, padded, and values dropped
    config.hidden = 48;
    config.vocab = 61;
    config.dropout = config.attention_dropout = 0.1;
  }
  return config;
}

TrainConfig on_mesh(TrainConfig config, const Mesh& mesh, int accumulation) {
  config.axes.set("dp", mesh.dp);
  config.axes.set("tp", mesh.tp);
  config.axes.set("pp", mesh.pp);
  config.micro_batch = kGlobalBatch / mesh.dp / accumulation;
  return config;
}

std::string describe(const TrainConfig& config) {
  return str(config.model, ", dp ", config.axes.dp(), ", tp ", config.axes.tp(), ", pp ",
             config.axes.pp(), ", stage ", config.zero, ", micro-batch ", config.micro_batch, ", ",
             config.schedule, ", chunks ", config.chunks, ", ", config.recompute,
             config.sequence_parallel ? ", sequence-parallel" : "",
             config.overlap_tp ? ", overlapped" : "");
}

struct Outcomes {
  std::vector<StepMetrics> steps;  // of rank 0
  std::vector<Summary> summaries;  // of all ranks
  std::vector<std::string> answers;
};

Outcomes run(const TrainConfig& config) {
  Outcomes out;
  const int ranks = static_cast<int>(std::max<std::int64_t>(1, config.axes.dp()) *
                                     config.axes.tp() * config.axes.pp());
  out.summaries.resize(static_cast<std::size_t>(ranks));
  comm::GroupOptions options;
  options.timeout = std::chrono::seconds(60);
  comm::run_threads(
      ranks,
      [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group world(std::move(backend));
        Trainer trainer(config, world);
        for (int step = 0; step < kSteps; ++step) trainer.step();
        out.summaries[static_cast<std::size_t>(world.rank())] = trainer.summary();
        const std::vector<std::string> answers = trainer.answers(1);
        if (world.rank() == 0) out.answers = answers;
        if (world.rank() == 0) out.steps = trainer.history();
      },
      options);
  return out;
}

const Outcomes& alone(const std::string& model) {
  static std::map<std::string, Outcomes> known;
  const auto found = known.find(model);
  if (found != known.end()) return found->second;
  TrainConfig config = small(model);
  config.axes.set("dp", 1);
  return known[model] = run(config);
}

void expect_same(const TrainConfig& config) {
  const Outcomes& want = alone(config.model);
  const Outcomes got = run(config);
  ASSERT_EQ(got.steps.size(), want.steps.size()) << describe(config);
  EXPECT_EQ(got.answers, want.answers) << describe(config);
  for (std::size_t i = 0; i < want.steps.size(); ++i) {
    ASSERT_NEAR(got.steps[i].loss, want.steps[i].loss, 1e-4 * want.steps[i].loss)
        << "step " << i << ": " << describe(config);
    ASSERT_NEAR(got.steps[i].grad_norm, want.steps[i].grad_norm, 1e-3 * want.steps[i].grad_norm)
        << "step " << i << ": " << describe(config);
  }
  for (std::size_t r = 0; r < got.summaries.size(); ++r) {
    const Outcome &predicted = got.summaries[r].predicted, &measured = got.summaries[r].measured;
    const std::string who = str("rank ", r, ": ", describe(config));
    EXPECT_EQ(predicted.sent->dp, measured.sent->dp) << who;
    EXPECT_EQ(predicted.sent->tp, measured.sent->tp) << who;
    EXPECT_EQ(predicted.sent->pp, measured.sent->pp) << who;
    for (const char* category : {"params", "grads", "optimizer"}) {
      EXPECT_EQ(predicted.memory.at(category), measured.memory.at(category))
          << category << ", " << who;
    }
    EXPECT_EQ(got.summaries[r].params_hash, got.summaries[0].params_hash) << who;
  }
}

const std::vector<Mesh> kMeshes = {{1, 2, 1}, {1, 1, 2}, {1, 2, 2},
                                   {2, 2, 1}, {2, 1, 2}, {2, 2, 2}};

TEST(Mesh, EveryMeshAndStageTrainsAsOneProcess) {
  int turn = 0;
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const Mesh& mesh : kMeshes) {
      for (int stage = 0; stage < 4; ++stage) {
        TrainConfig config = on_mesh(small(model), mesh, ++turn % 2 == 0 && mesh.pp == 1 ? 1 : 4);
        config.zero = stage;
        config.sequence_parallel = mesh.tp > 1 && turn % 3 == 0;
        config.recompute = turn % 5 == 0 ? "full" : "none";
        expect_same(config);
      }
    }
  }
}

TEST(Mesh, WhatIsDroppedIsTheSameOnEveryMesh) {
  int stage = 0;
  for (const Mesh& mesh : {Mesh{2, 1, 1}, Mesh{1, 2, 1}, Mesh{1, 1, 2}, Mesh{2, 2, 1}}) {
    TrainConfig config = on_mesh(small("qwen2.5-1.5b"), mesh, mesh.pp == 1 ? 2 : 4);
    config.zero = stage++;
    config.sequence_parallel = mesh.tp > 1;
    config.recompute = stage % 2 == 0 ? "selective" : "full";
    expect_same(config);
  }
}

TEST(Mesh, LayersCanBeCutInAnyWay) {
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const char* split : {"work", "3,1", "1,3"}) {
      TrainConfig config = on_mesh(small(model), {2, 1, 2}, 4);
      config.zero = 2;
      config.split = split;
      expect_same(config);
    }
  }
}

TEST(Mesh, EveryScheduleTrainsAsOneProcess) {
  for (const Mesh& mesh : {Mesh{1, 1, 2}, Mesh{2, 1, 2}, Mesh{1, 2, 2}}) {
    for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}) {
      for (int stage = 0; stage < 4; ++stage) {
        const std::string name = schedule;
        if (name.starts_with("zb") && stage == 3) continue;  // refused, below
        TrainConfig config = on_mesh(small(name == "zb-v" ? "llama-tiny" : "gpt-tiny"), mesh, 4);
        config.zero = stage;
        config.schedule = schedule;
        config.chunks = name == "interleaved" ? 2 : 1;
        expect_same(config);
      }
    }
  }
}

TEST(Mesh, OverlapTrainsAsOneProcess) {
  int turn = 0;
  for (const Mesh& mesh : {Mesh{1, 2, 1}, Mesh{2, 2, 2}}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (const bool sequence : {true, false}) {
        TrainConfig config = on_mesh(small(++turn % 2 == 0 ? "gpt-tiny" : "llama-tiny"), mesh, 4);
        config.zero = turn % 4;
        config.overlap_tp = true;
        config.sequence_parallel = sequence;
        config.recompute = recompute;
        expect_same(config);
      }
    }
  }
  // Weight gradients that wait.
  TrainConfig config = on_mesh(small("gpt-tiny"), {1, 2, 2}, 4);
  config.schedule = "zb-h1";
  config.overlap_tp = config.sequence_parallel = true;
  expect_same(config);
}

TEST(Mesh, ReducePoliciesAndRecomputationUnderPipelining) {
  for (const char* policy : {"each", "last"}) {
    for (const char* recompute : {"none", "selective", "full"}) {
      for (int stage = 0; stage < 4; ++stage) {
        TrainConfig config = on_mesh(small("gpt-tiny"), {2, 1, 2}, 4);
        config.zero = stage;
        config.grad_reduce = policy;
        config.recompute = recompute;
        expect_same(config);
      }
    }
  }
}

TEST(Mesh, WhatCannotBeIsRefused) {
  const auto refused = [](const std::function<void(TrainConfig&)>& change, int ranks) {
    TrainConfig config = on_mesh(small("gpt-tiny"), {}, 4);
    config.axes.set("dp", 0);
    change(config);
    int count = 0;
    comm::run_threads(ranks, [&](std::shared_ptr<comm::Backend> backend) {
      const comm::Group world(std::move(backend));
      try {
        const Trainer trainer(config, world);
      } catch (const UsageError&) {
        if (world.rank() == 0) ++count;
      }
    });
    return count == 1;
  };
  EXPECT_TRUE(refused([](TrainConfig& c) { c.axes.set("tp", 3); }, 3)) << "heads % tp";
  EXPECT_TRUE(refused([](TrainConfig& c) { c.overlap_tp = true; }, 2)) << "no tp to overlap";
  EXPECT_TRUE(refused([](TrainConfig& c) { c.axes.set("pp", 8); }, 8)) << "layers < pp";
  EXPECT_TRUE(refused([](TrainConfig& c) { c.axes.set("tp", 2); }, 3)) << "ranks";
  EXPECT_TRUE(refused(
      [](TrainConfig& c) {
        c.axes.set("tp", 2);
        c.axes.set("dp", 2);
      },
      2))
      << "world != dp · tp · pp";
  EXPECT_TRUE(refused(
      [](TrainConfig& c) {
        c.axes.set("pp", 2);
        c.schedule = "interleaved";
        c.chunks = 2;
        c.micro_batch = kGlobalBatch;
      },
      2))
      << "fewer micro-batches than stages";
  EXPECT_TRUE(refused(
      [](TrainConfig& c) {
        c.axes.set("pp", 2);
        c.schedule = "zb-h1";
        c.zero = 3;
      },
      2));
  EXPECT_TRUE(refused(
      [](TrainConfig& c) {
        c.axes.set("pp", 2);
        c.schedule = "zb-v";
      },
      2))
      << "tied, first and last stage on one rank";
}

}  // namespace
}  // namespace tessera::train
