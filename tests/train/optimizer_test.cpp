// Every optimizer of --optimizer: losses of training.

#include <gtest/gtest.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/rules.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

RunConfig optimizer_config(const std::string& optimizer, int dp, int tp, int stage) {
  RunConfig config =
      on_cut(small_run("gpt-tiny", 8, optimizer == "lion" ? 1e-3 : 1e-2), {dp, tp, 1}, 1);
  config.layers = 2;
  config.zero = stage;
  config.set("optimizer", optimizer);
  return config;
}

std::vector<double> losses_with(const RunConfig& config) {
  std::vector<double> losses;
  on_ranks(config, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < config.steps; ++step) trainer.step();
    const Summary summary = trainer.summary();
    EXPECT_EQ((*summary.predicted.sent)[Axis::dp_shard], (*summary.measured.sent)[Axis::dp_shard])
        << name(config.optimizer);
    for (const char* category : {"params", "grads", "optimizer"}) {
      EXPECT_EQ(summary.predicted.memory.at(category), summary.measured.memory.at(category))
          << name(config.optimizer) << ", " << category << ", stage " << config.zero;
    }
    if (rank != 0) return;
    for (const StepMetrics& step : trainer.history()) losses.push_back(step.loss);
  });
  return losses;
}

TEST(OptimizerByName, MatchesOneProcessAtEveryStage) {
  for (const std::string& name : rules::names()) {
    const std::vector<double> alone = losses_with(optimizer_config(name, 1, 1, 0));
    EXPECT_LT(alone.back(), alone.front()) << name;
    for (int stage = 0; stage < 4; ++stage) {
      const std::vector<double> got = losses_with(optimizer_config(name, 2, 1, stage));
      ASSERT_EQ(got.size(), alone.size());
      for (std::size_t i = 0; i < alone.size(); ++i) {
        // Lion updates by signs, which rounding can flip.
        EXPECT_NEAR(got[i], alone[i], (name == "lion" ? 1e-2 : 1e-3) * alone[i])
            << name << ", stage " << stage << ", step " << i;
      }
    }
  }
}

TEST(OptimizerByName, MuonRejectsTensorParallelMatrices) {
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
