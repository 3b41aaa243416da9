// Runs that tune adapters of small models, each rank a thread.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tessera/comm/threads.h"
#include "tessera/core/text.h"
#include "tessera/train/trainer.h"

namespace tessera::train::tuning {

inline constexpr std::int64_t kBatch = 8;
inline constexpr int kTuningSteps = 3;

inline TrainConfig tuned(const std::string& model, const std::string& targets = "all") {
  TrainConfig config;
  config.model = model;
  config.layers = 4;
  config.hidden = 32;
  config.heads = 4;
  config.vocab = 64;
  config.seq = 16;
  config.steps = kTuningSteps;
  config.global_batch = kBatch;
  config.micro_batch = kBatch;
  config.lr = 5e-2;
  config.warmup = 0;
  config.seed = 5;
  config.lora_rank = 4;
  config.lora_targets = targets;
  config.axes.set("dp", 1);
  return config;
}

struct Cut {
  int dp = 1, tp = 1, pp = 1;
};
inline TrainConfig on_cut(TrainConfig config, const Cut& cut, int accumulation) {
  config.axes.set("dp", cut.dp);
  config.axes.set("tp", cut.tp);
  config.axes.set("pp", cut.pp);
  config.micro_batch = kBatch / cut.dp / accumulation;
  return config;
}

inline std::string words(const TrainConfig& config) {
  return str(config.model, " ", config.lora_targets, ", dp ", config.axes.dp(), ", tp ",
             config.axes.tp(), ", pp ", config.axes.pp(), ", stage ", config.zero, ", micro-batch ",
             config.micro_batch, ", ", config.schedule, ", ", config.recompute, ", ", config.layout,
             config.sequence_parallel ? ", sequence-parallel" : "");
}

struct Outcomes {
  std::vector<StepMetrics> steps;  // of rank 0
  std::vector<Summary> summaries;
};

inline void on_ranks(const TrainConfig& config, const std::function<void(Trainer&, int)>& body) {
  comm::GroupOptions options;
  options.timeout = std::chrono::seconds(60);
  comm::run_threads(
      static_cast<int>(config.axes.world()),
      [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group world(std::move(backend));
        Trainer trainer(config, world);
        body(trainer, world.rank());
      },
      options);
}

inline Outcomes tune(const TrainConfig& config) {
  Outcomes out;
  out.summaries.resize(static_cast<std::size_t>(config.axes.world()));
  on_ranks(config, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < kTuningSteps; ++step) trainer.step();
    out.summaries[static_cast<std::size_t>(rank)] = trainer.summary();
    if (rank == 0) out.steps = trainer.history();
  });
  return out;
}

inline const Outcomes& in_one_process(const TrainConfig& config) {
  static std::map<std::string, Outcomes> known;
  const std::string key = str(config.model, " ", config.lora_targets, " ", config.lora_dropout);
  if (!known.contains(key)) {
    TrainConfig alone = tuned(config.model, config.lora_targets);
    alone.lora_dropout = config.lora_dropout;
    known[key] = tune(alone);
  }
  return known[key];
}

// Losses, gradients, bytes and memory of state as in one process and in the plan.
inline void expect_same(const TrainConfig& config) {
  const Outcomes& want = in_one_process(config);
  const Outcomes got = tune(config);
  ASSERT_EQ(got.steps.size(), want.steps.size()) << words(config);
  for (std::size_t i = 0; i < want.steps.size(); ++i) {
    ASSERT_NEAR(got.steps[i].loss, want.steps[i].loss, 1e-4 * want.steps[i].loss)
        << "step " << i << ": " << words(config);
    ASSERT_NEAR(got.steps[i].grad_norm, want.steps[i].grad_norm, 1e-3 * want.steps[i].grad_norm)
        << "step " << i << ": " << words(config);
  }
  for (std::size_t r = 0; r < got.summaries.size(); ++r) {
    const Outcome &predicted = got.summaries[r].predicted, &measured = got.summaries[r].measured;
    const std::string who = str("rank ", r, ": ", words(config));
    EXPECT_EQ(predicted.sent->dp, measured.sent->dp) << who;
    EXPECT_EQ(predicted.sent->tp, measured.sent->tp) << who;
    EXPECT_EQ(predicted.sent->pp, measured.sent->pp) << who;
    for (const char* category : {"params", "grads", "optimizer"}) {
      const auto planned = static_cast<double>(predicted.memory.at(category));
      EXPECT_NEAR(static_cast<double>(measured.memory.at(category)), planned, 0.01 * planned)
          << category << ", " << who;
    }
    EXPECT_EQ(got.summaries[r].params_hash, got.summaries[0].params_hash) << who;
  }
}

struct Folder {
  Folder() {
    char name[] = "/tmp/tessera-lora-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

}  // namespace tessera::train::tuning
