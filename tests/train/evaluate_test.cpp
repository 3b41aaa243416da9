// Evaluation: equal on every mesh, during training and afterwards, and without effect on training.

#include "tessera/train/evaluate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/data/data_set.h"
#include "tests/huggingface/made.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

class Evaluate : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream text(folder / "text.txt");
    // Neither a whole number of windows nor of batches.
    for (int i = 0; i < 211; ++i) text << "line " << i * i % 97 << " of a text\n";
  }
  RunConfig config(int dp, int tp, int pp, int zero) const {
    RunConfig config;
    config.set("model", "llama-tiny");
    config.layers = 2;
    config.hidden = 32;
    config.heads = 4;
    config.vocab = 256;
    config.seq = 16;
    config.data = config.val_data = folder / "text.txt";
    config.steps = 4;
    config.global_batch = 8;
    config.micro_batch = 2;
    config.warmup = 0;
    config.zero = zero;
    config.axes.set_dp(dp);
    config.axes.set(Axis::tp, tp);
    config.axes.set(Axis::pp, pp);
    config.save = folder / "run";
    config.async_save = false;
    return config;
  }

  const TemporaryFolder temporary_;
  const fs::path folder = temporary_.path;
};

struct Trained {
  std::string hash;
  std::vector<double> losses, evaluations;
};
Trained train_on(const RunConfig& config, bool evaluates, bool saves = false) {
  Trained out;
  on_ranks(config, [&](Trainer& trainer, int rank) {
    std::vector<double> evaluations;
    if (evaluates) evaluations.push_back(trainer.evaluate().loss());
    for (int step = 0; step < 4; ++step) {
      trainer.step();
      if (evaluates && step % 2 == 1) evaluations.push_back(trainer.evaluate().loss());
    }
    if (saves) {
      trainer.save();
      trainer.finish_saving();
    }
    const Summary summary = trainer.summary();
    if (rank != 0) return;
    out.hash = summary.params_hash;
    for (const StepMetrics& step : trainer.history()) out.losses.push_back(step.loss);
    out.evaluations = evaluations;
    EXPECT_EQ(trainer.history()[1].evaluation.has_value(), evaluates);
    EXPECT_FALSE(trainer.history()[0].evaluation.has_value() && !evaluates);
  });
  return out;
}

TEST_F(Evaluate, DoesNotAffectTraining) {
  std::vector<double> first;
  for (const auto& [dp, tp, pp, zero] : std::vector<std::array<int, 4>>{{1, 1, 1, 0},
                                                                        {2, 1, 1, 0},
                                                                        {2, 1, 1, 2},
                                                                        {2, 1, 1, 3},
                                                                        {1, 2, 1, 0},
                                                                        {1, 1, 2, 1},
                                                                        {2, 1, 2, 3}}) {
    SCOPED_TRACE(str("dp ", dp, " tp ", tp, " pp ", pp, " stage ", zero));
    RunConfig run = config(dp, tp, pp, zero);
    run.save.clear();
    const Trained with = train_on(run, true), without = train_on(run, false);
    EXPECT_EQ(with.hash, without.hash);
    EXPECT_EQ(with.losses, without.losses);
    ASSERT_EQ(with.evaluations.size(), 3U);
    EXPECT_LT(with.evaluations[2], with.evaluations[0]);
    // Equal on every mesh, but parameters differ in their last digits after some steps.
    if (first.empty()) first = with.evaluations;
    EXPECT_NEAR(with.evaluations[0], first[0], 1e-6 * first[0]);
    EXPECT_NEAR(with.evaluations[2], first[2], 1e-4 * first[2]);
  }
}

// Evaluates the model of a run on these meshes. Expects equal results, and returns them.
Evaluation evaluate_on(const RunConfig& run, std::initializer_list<const char*> meshes) {
  data::DataOptions read;
  read.val_data = run.val_data;
  read.seq = 16;
  Evaluation wanted;
  for (const char* mesh : meshes) {
    over(static_cast<int>(Axes(mesh).world()), [&](const comm::Group& world) {
      const auto files = open_model(run.save);
      const auto source = data::validation_source(read);
      EvaluateOptions options;
      options.batch = 4;
      const Evaluation got = evaluate(*files, *source, comm::Mesh(world, Axes(mesh)), options);
      if (world.rank() != 0) return;
      if (wanted.tokens == 0) wanted = got;
      EXPECT_NEAR(got.loss(), wanted.loss(), 1e-6 * wanted.loss()) << mesh;
      EXPECT_EQ(got.tokens, wanted.tokens) << mesh;
    });
  }
  return wanted;
}

TEST_F(Evaluate, IsEqualOnEveryMeshFromAnyCheckpoint) {
  const RunConfig run = config(2, 1, 1, 2);
  const Trained trained = train_on(run, true, true);
  const Evaluation wanted =
      evaluate_on(run, {"dp=1", "dp=2", "tp=2", "pp=2", "tp=2,pp=2", "dp=2,tp=2", "cp=2", "cp=3",
                        "cp=2,pp=2", "dp=2,cp=2,tp=2"});
  // Each token but the first is predicted once, also in training batches.
  EXPECT_EQ(wanted.tokens, static_cast<std::int64_t>(fs::file_size(run.val_data)) - 1);
  EXPECT_NEAR(wanted.loss(), trained.evaluations.back(), 1e-6 * wanted.loss());
  EXPECT_NEAR(wanted.perplexity(), std::exp(wanted.loss()), 1e-9);
  // A token is a byte.
  EXPECT_NEAR(wanted.bits_per_byte(), wanted.loss() / std::log(2.0), 1e-3);
}

// Replicas without a batch of their own must take part in the exchange of tokens.
TEST_F(Evaluate, ModelsWithExpertsAreEqualOnEveryMesh) {
  RunConfig run = config(2, 1, 1, 2);
  run.axes.set(Axis::ep, 2);
  run.experts = 5;
  run.experts_per_token = 2;
  run.expert_ffn = 24;
  run.shared_expert_ffn = 8;
  run.dense_layers = 1;
  run.router_scores = RouterScores::sigmoid;
  run.balance_bias_rate = 0.1;  // the biases select other experts
  run.router_jitter = 0.3;      // in training only
  const Trained trained = train_on(run, true, true);
  const Evaluation wanted = evaluate_on(run, {"dp=1", "dp=2", "dp=2,ep=2", "dp=3,ep=3", "dp=4,ep=2",
                                              "cp=2,ep=2", "tp=2,dp=2,ep=2", "pp=2,dp=3,ep=3"});
  EXPECT_EQ(wanted.tokens, static_cast<std::int64_t>(fs::file_size(run.val_data)) - 1);
  EXPECT_NEAR(wanted.loss(), trained.evaluations.back(), 1e-6 * wanted.loss());
}

TEST_F(Evaluate, EvaluatesTheGivenNumberOfBatches) {
  const RunConfig run = config(1, 1, 1, 0);
  train_on(run, false, true);
  data::DataOptions read;
  read.val_data = run.val_data;
  read.seq = 16;
  const auto source = data::validation_source(read);
  const auto files = open_model(run.save);
  const comm::Mesh mesh{comm::Group(), Axes()};
  EvaluateOptions options;
  options.batch = 4;
  options.batches = 2;
  EXPECT_EQ(evaluate(*files, *source, mesh, options).tokens, 2 * 4 * 16);
  const auto endless = data::sorting(16, 0);
  EXPECT_TRUE(contains(error_of([&] { batches_of(*endless, 4, 0); }), "--batches"));
  EXPECT_EQ(batches_of(*endless, 4, 7), 7);
}

// Parameters are not rounded by default.
TEST_F(Evaluate, ReadsAFolderInATypeWithoutRounding) {
  for (const auto& [dtype, type] :
       {std::pair(DType::f32, at::kFloat), std::pair(DType::bf16, at::kBFloat16),
        std::pair(DType::f16, at::kFloat)}) {
    const std::string path = folder / ("of-" + std::to_string(static_cast<int>(dtype)));
    huggingface::make_folder(path, huggingface::small_shape("llama"), {.dtype = dtype});
    EXPECT_EQ(open_model(path)->type(), type);
  }
}

TEST_F(Evaluate, RejectsPathsWithoutAModel) {
  EXPECT_TRUE(contains(error_of([&] { open_model(folder / "none"); }), "missing"));
  EXPECT_TRUE(contains(error_of([&] { open_model(folder / "text.txt"); }), "a regular file"));
  EXPECT_TRUE(contains(error_of([&] { open_model(folder); }), "a folder without a model"));
}

TEST_F(Evaluate, NeedsValidationData) {
  RunConfig run = config(1, 1, 1, 0);
  run.val_data.clear();
  run.eval_every = 2;
  EXPECT_TRUE(contains(error_of([&] { resolve(run, 1); }), "--eval-every needs validation data"));
}

TEST(LearningRate, ScalesWithTheBatch) {
  RunConfig run;
  run.lr = 1e-3;
  run.micro_batch = 32;
  run.grad_accum = 4;
  EXPECT_EQ(resolve(run, 2).lr, 1e-3);
  run.lr_scaling = LrScaling::linear;
  EXPECT_TRUE(contains(error_of([&] { resolve(run, 2); }), "--lr-reference-batch"));
  run.lr_reference_batch = 64;
  EXPECT_DOUBLE_EQ(resolve(run, 2).lr, 4e-3);
  run.lr_scaling = LrScaling::sqrt;
  EXPECT_DOUBLE_EQ(resolve(run, 2).lr, 2e-3);
  run.lr_scaling = LrScaling::none;
  EXPECT_TRUE(contains(error_of([&] { resolve(run, 2); }), "--lr-scaling"));
  // Steps use this rate, and describe() prints it.
  run.lr_scaling = LrScaling::linear;
  run.layers = 1;
  run.hidden = 16;
  run.heads = 2;
  run.vocab = 12;
  run.seq = 16;
  run.micro_batch = 1;
  run.lr_schedule = LrSchedule::Kind::constant;
  run.warmup = 0;
  run.lr_reference_batch = 2;
  Trainer trainer(run, comm::Group());
  EXPECT_DOUBLE_EQ(trainer.step().lr, 2e-3);
  EXPECT_TRUE(contains(trainer.describe(), "learning rate 0.002: 0.001 for a batch of 2"));
}

}  // namespace
}  // namespace tessera::train
