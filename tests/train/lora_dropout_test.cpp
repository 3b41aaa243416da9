// Adapters with dropout: equal on any mesh, off in evaluation, saved and exported with the rate.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/huggingface/peft.h"
#include "tessera/huggingface/shape_json.h"
#include "tessera/train/adapters.h"
#include "tests/text.h"
#include "tests/train/tuning.h"

namespace tessera::train {
namespace {

using namespace tuning;

RunConfig dropping(const std::string& model, double rate = 0.2) {
  RunConfig config = tuned(model);
  config.lora_dropout = rate;
  return config;
}

std::vector<double> losses_of(const Outcomes& run) {
  std::vector<double> all;
  for (const StepMetrics& step : run.steps) all.push_back(step.loss);
  return all;
}

TEST(LoraDropout, MatchesOneProcessOnEveryMeshAndStage) {
  int turn = 0;
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const Cut& cut : {Cut{2, 1, 1}, Cut{1, 2, 1}, Cut{1, 1, 2}, Cut{2, 2, 1}, Cut{2, 1, 2}}) {
      RunConfig config = on_cut(dropping(model), cut, turn % 2 == 0 && cut.pp == 1 ? 1 : 4);
      config.zero = cut.dp == 1 ? 0 : (turn + 1) % 4;
      config.sequence_parallel = cut.tp > 1 && turn % 2 == 1;
      config.set("recompute", turn % 3 == 0 ? "full" : turn % 3 == 1 ? "selective" : "none");
      ++turn;
      expect_same(config);
    }
  }
}

// Different rates give different runs; rate 0 is bitwise equal to the run without the flag.
TEST(LoraDropout, ChangesTheRunUnlessTheRateIs0) {
  const Outcomes without = run_all(tuned("llama-tiny")), none = run_all(dropping("llama-tiny", 0));
  EXPECT_EQ(losses_of(without), losses_of(none));
  EXPECT_EQ(without.summaries[0].params_hash, none.summaries[0].params_hash);
  const Outcomes some = run_all(dropping("llama-tiny")), same = run_all(dropping("llama-tiny"));
  EXPECT_EQ(losses_of(some), losses_of(same));
  EXPECT_NE(losses_of(some), losses_of(without));
  // B starts with zeros, so the adapters do not affect the loss of the first step.
  EXPECT_EQ(losses_of(some)[0], losses_of(without)[0]);
}

TEST(LoraDropout, MemoryMatchesThePlan) {
  for (const char* recompute : {"none", "full"}) {
    RunConfig config = on_cut(dropping("llama-tiny"), {2, 1, 1}, 2);
    config.set("recompute", recompute);
    const Outcomes got = run_all(config);
    for (const char* row : {"params", "grads", "optimizer", "activations", "peak"}) {
      const auto want = static_cast<double>(got.summaries[0].predicted.memory.at(row));
      EXPECT_NEAR(static_cast<double>(got.summaries[0].measured.memory.at(row)), want,
                  (std::string(row) == "peak" ? 0.1 : 0.02) * want)
          << recompute << " " << row;
    }
  }
}

// Evaluation uses the whole model: equal for the same adapters, for any rate in training.
TEST(LoraDropout, IsOffInEvaluation) {
  const Folder folder;
  const std::string text = folder.path + "/text.txt";
  for (int i = 0; i < 400; ++i)
    std::ofstream(text, std::ios::app) << "line " << i * 37 % 101 << "\n";
  RunConfig config = on_cut(dropping("gpt-tiny", 0.5), {1, 2, 1}, 1);
  config.vocab = 256;
  config.data = text;
  config.val_fraction = 0.2;
  config.save = folder.path + "/run";
  double before = 0;
  std::string at;
  on_ranks(config, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < kTuningSteps; ++step) trainer.step();
    const double loss = trainer.evaluate().loss(), again = trainer.evaluate().loss();
    EXPECT_EQ(loss, again);
    trainer.save();
    const LastSave saved = trainer.finish_saving();
    if (rank == 0) before = loss;
  });
  at = checkpoint::find_latest(config.save).folder;
  ASSERT_FALSE(at.empty());
  RunConfig plain = config;  // the rate is not part of the saved model
  plain.lora_dropout = 0;
  plain.resume = at;
  plain.save.clear();
  on_ranks(plain, [&](Trainer& trainer, int) {
    std::vector<std::string> notes;
    ASSERT_TRUE(trainer.resume(notes));
    EXPECT_EQ(trainer.evaluate().loss(), before);
  });

  // The rate is exported, and imported unless another one is given.
  checkpoint::Checkpoint from(at);
  EXPECT_EQ(huggingface::parse_shape(from.about().model, at).lora.dropout, 0.5);
  const std::string out = folder.path + "/adapters";
  huggingface::export_adapter(from, out);
  RunConfig third = config;
  third.lora_rank = 0;
  third.lora_from = out;
  third.lora_dropout = -1;
  ModelShape shape = huggingface::parse_shape(from.about().model, at);
  shape.lora = {};
  EXPECT_EQ(requested_adapters(third, shape).dropout, 0.5);
  third.lora_dropout = 0.1;
  EXPECT_EQ(requested_adapters(third, shape).dropout, 0.1);
  third.lora_dropout = 0;
  EXPECT_EQ(requested_adapters(third, shape).dropout, 0);
}

// A resumed run is bitwise equal to an uninterrupted one.
TEST(LoraDropout, ResumedRunIsBitwiseEqual) {
  const Folder folder;
  RunConfig config = on_cut(dropping("llama-tiny"), {2, 1, 1}, 1);
  config.save = folder.path;
  config.zero = 2;
  std::string hash;
  on_ranks(config, [&](Trainer& trainer, int rank) {
    for (int step = 0; step < kTuningSteps; ++step) {
      trainer.step();
      if (step == 0) trainer.save();
    }
    trainer.finish_saving();
    if (const Summary summary = trainer.summary(); rank == 0) hash = summary.params_hash;
  });
  config.resume = checkpoint::find_latest(folder.path).folder;
  config.save.clear();
  on_ranks(config, [&](Trainer& trainer, int) {
    std::vector<std::string> notes;
    ASSERT_TRUE(trainer.resume(notes));
    for (int step = 1; step < kTuningSteps; ++step) trainer.step();
    EXPECT_EQ(trainer.summary().params_hash, hash);
  });
}

TEST(LoraDropout, NeedsAdapters) {
  RunConfig config = dropping("llama-tiny");
  config.lora_rank = 0;
  EXPECT_TRUE(contains(error_of([&] { resolve(config, 1); }), "--lora-dropout: got 0.2"));
  config.lora_rank = 4;
  EXPECT_EQ(resolve(config, 1).model.lora.dropout, 0.2);
  config.lora_dropout = -0.5;
  EXPECT_TRUE(contains(error_of([&] { resolve(config, 1); }), "--lora-dropout: got -0.5"));
}

}  // namespace
}  // namespace tessera::train
