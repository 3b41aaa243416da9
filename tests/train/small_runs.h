// Runs of small models, each rank a thread, compared with the same run in one process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/text.h"
#include "tessera/train/trainer.h"
#include "tests/ranks.h"

namespace tessera::train {

inline constexpr std::int64_t kBatch = 8;  // of all ranks

inline RunConfig small_run(const std::string& model, std::int64_t steps, double lr) {
  RunConfig config;
  config.set("model", model);
  config.layers = 4;
  config.hidden = 32;
  config.heads = 4;
  config.vocab = 64;
  config.seq = 16;
  config.steps = steps;
  config.global_batch = kBatch;
  config.micro_batch = kBatch;
  config.lr = lr;
  config.warmup = 0;
  config.seed = 5;
  config.axes = Axes();
  return config;
}

struct Cut {
  int dp = 1, tp = 1, pp = 1, cp = 1, ep = 1;
};
inline RunConfig on_cut(RunConfig config, const Cut& cut, int accumulation) {
  config.axes = {{Axis::dp_shard, cut.dp},
                 {Axis::tp, cut.tp},
                 {Axis::pp, cut.pp},
                 {Axis::cp, cut.cp},
                 {Axis::ep, cut.ep}};
  config.micro_batch = kBatch / cut.dp / accumulation;
  return config;
}

inline std::string words(const RunConfig& config) {
  return str(config.model_name, ", ", config.axes.text(), ", stage ", config.zero, ", micro-batch ",
             config.micro_batch, ", ", config.schedule, ", chunks ", config.chunks, ", ",
             config.recompute, ", ", config.layout.name,
             config.sequence_parallel ? ", sequence-parallel" : "",
             config.overlap_tp ? ", overlapped" : "",
             config.axes.size(Axis::cp) > 1 ? str(", ", config.cp_kind) : "",
             config.lora_rank > 0 ? ", adapters of " + config.lora_targets : "");
}

// Runs a trainer on each rank.
inline void on_ranks(const RunConfig& config, const std::function<void(Trainer&, int)>& body) {
  over(static_cast<int>(config.axes.world()), [&](const comm::Group& world) {
    Trainer trainer(config, world);
    body(trainer, world.rank());
  });
}

// Returns the same run in one process, with all samples of a step in one micro-batch.
inline RunConfig in_one_process(RunConfig config) {
  config.axes = Axes();
  config.zero = 0;
  config.micro_batch = kBatch;
  config.sequence_parallel = false;
  config.schedule = ScheduleChoice::one_f_one_b;
  config.recompute = Recompute::none;
  config.chunks = 0;
  return config;
}

struct Outcomes {
  std::vector<StepMetrics> steps;  // of rank 0
  std::vector<Summary> summaries;  // of all ranks
  std::vector<std::string> answers;
};

inline Outcomes run_all(const RunConfig& config, std::int64_t questions = 0) {
  Outcomes out;
  out.summaries.resize(static_cast<std::size_t>(config.axes.world()));
  on_ranks(config, [&](Trainer& trainer, int rank) {
    for (std::int64_t step = 0; step < config.steps; ++step) trainer.step();
    out.summaries[static_cast<std::size_t>(rank)] = trainer.summary();
    const std::vector<std::string> answers = trainer.answers(questions);
    if (rank != 0) return;
    out.answers = answers;
    out.steps = trainer.history();
  });
  return out;
}

// Outcome of train_to(), of rank 0.
struct TrainedTo {
  std::vector<double> losses;
  std::string hash;  // of the parameters
};

// Resumes as the configuration says, trains up to a step, and saves if it has a folder.
inline TrainedTo train_to(const RunConfig& config, std::int64_t step) {
  TrainedTo out;
  on_ranks(config, [&](Trainer& trainer, int rank) {
    std::vector<std::string> notes;
    trainer.resume(notes);
    while (trainer.steps_done() < step) trainer.step();
    if (!config.save.empty()) trainer.save();
    trainer.finish_saving();
    const Summary summary = trainer.summary();
    if (rank != 0) return;
    for (const StepMetrics& each : trainer.history()) out.losses.push_back(each.loss);
    out.hash = summary.params_hash;
  });
  return out;
}

// Expects losses and gradient norms as in `want`, and traffic and, within a tolerance, memory of
// state as planned.
inline void expect_same(const RunConfig& config, const Outcomes& got, const Outcomes& want,
                        double memory_share = 0) {
  ASSERT_EQ(got.steps.size(), want.steps.size()) << words(config);
  EXPECT_EQ(got.answers, want.answers) << words(config);
  for (std::size_t i = 0; i < want.steps.size(); ++i) {
    ASSERT_NEAR(got.steps[i].loss, want.steps[i].loss, 1e-4 * want.steps[i].loss)
        << "step " << i << ": " << words(config);
    ASSERT_NEAR(got.steps[i].grad_norm, want.steps[i].grad_norm, 1e-3 * want.steps[i].grad_norm)
        << "step " << i << ": " << words(config);
  }
  for (std::size_t r = 0; r < got.summaries.size(); ++r) {
    const Outcome &predicted = got.summaries[r].predicted, &measured = got.summaries[r].measured;
    const std::string who = str("rank ", r, ": ", words(config));
    for (const Axis axis : kAllAxes) {
      if (axis == Axis::ep) continue;  // the plan assumes that all experts are used evenly
      EXPECT_EQ((*predicted.sent)[axis], (*measured.sent)[axis]) << axis_name(axis) << ", " << who;
    }
    for (const char* category : {"params", "grads", "optimizer"}) {
      const auto planned = static_cast<double>(predicted.memory.at(category));
      EXPECT_NEAR(static_cast<double>(measured.memory.at(category)), planned,
                  memory_share * planned)
          << category << ", " << who;
    }
    EXPECT_EQ(got.summaries[r].params_hash, got.summaries[0].params_hash) << who;
  }
}

}  // namespace tessera::train
