// Every optimizer that has a name, from the trainer's settings to its losses.

#include <gtest/gtest.h>

#include "tessera/comm/threads.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/rules.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace {

TrainConfig optimizer_config(const std::string& optimizer, int dp, int tp, int stage) {
  TrainConfig config;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 4;
  config.vocab = 64;
  config.seq = 16;
  config.steps = 8;
  config.global_batch = 8;
  config.micro_batch = 8 / dp;
  config.axes.set("dp", dp);
  config.axes.set("tp", tp);
  config.zero = stage;
  config.optimizer = optimizer;
  config.lr = optimizer == "lion" ? 1e-3 : 1e-2;
  config.warmup = 0;
  config.seed = 5;
  return config;
}

std::vector<double> losses_with(const TrainConfig& config) {
  std::vector<double> losses;
  comm::GroupOptions options;
  options.timeout = std::chrono::seconds(60);
  comm::run_threads(
      static_cast<int>(config.axes.dp() * config.axes.tp()),
      [&](std::shared_ptr<comm::Backend> backend) {
        const comm::Group world(std::move(backend));
        Trainer trainer(config, world);
        for (int step = 0; step < config.steps; ++step) trainer.step();
        const Summary summary = trainer.summary();
        EXPECT_EQ(summary.predicted.sent->dp, summary.measured.sent->dp) << config.optimizer;
        for (const char* category : {"params", "grads", "optimizer"}) {
          EXPECT_EQ(summary.predicted.memory.at(category), summary.measured.memory.at(category))
              << config.optimizer << ", " << category << ", stage " << config.zero;
        }
        if (world.rank() != 0) return;
        for (const StepMetrics& step : trainer.history()) losses.push_back(step.loss);
      },
      options);
  return losses;
}

TEST(OptimizerByName, TrainsAtEveryStageAsInOneProcess) {
  for (const std::string& name : rules::names()) {
    const std::vector<double> alone = losses_with(optimizer_config(name, 1, 1, 0));
    EXPECT_LT(alone.back(), alone.front()) << name;
    for (int stage = 0; stage < 4; ++stage) {
      const std::vector<double> got = losses_with(optimizer_config(name, 2, 1, stage));
      ASSERT_EQ(got.size(), alone.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        // Lion moves by signs, which rounding can turn.
        EXPECT_NEAR(got[i], alone[i], (name == "lion" ? 1e-2 : 1e-3) * alone[i])
            << name << ", stage " << stage << ", step " << i;
      }
    }
  }
}

TEST(OptimizerByName, MuonRefusesMatricesThatTensorParallelismCuts) {
  try {
    losses_with(optimizer_config("muon", 1, 2, 1));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("blocks.0"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("--tp 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera::train
