// Runs with PowerSGD, interrupted and resumed: bitwise equal on any mesh, also with heads that are
// tied over a pipeline.

#include <gtest/gtest.h>

#include "tessera/checkpoint/checkpoint.h"
#include "tests/text.h"
#include "tests/train/tuning.h"

namespace tessera::train {
namespace {

using namespace tuning;

TEST(PowerSgdRuns, ResumeBitwiseEqual) {
  constexpr int kSteps = 6, kSaved = 3;
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const Cut& cut : {Cut{2, 1, 1}, Cut{4, 1, 1}, Cut{2, 2, 1}, Cut{2, 1, 2}}) {
      for (const char* optimizer : {"adamw", "muon"}) {
        if (cut.tp > 1 && std::string(optimizer) == "muon") continue;
        const Folder folder;
        TrainConfig config = on_cut(tuned(model), cut, cut.pp > 1 ? 2 : 1);
        config.lora_rank = 0;
        config.steps = kSteps;
        config.lr = 1e-2;
        config.optimizer = optimizer;
        config.grad_compression = "powersgd";
        config.powersgd_warmup = 1;
        config.powersgd_rank = 2;
        config.save = folder.path;
        std::string hash, end;
        on_ranks(config, [&](Trainer& trainer, int rank) {
          for (int step = 0; step < kSteps; ++step) {
            trainer.step();
            if (step + 1 == kSaved) trainer.save();
          }
          trainer.finish_saving();
          if (const Summary summary = trainer.summary(); rank == 0) hash = summary.params_hash;
        });
        config.resume = checkpoint::find_latest(folder.path).folder;
        config.save.clear();
        on_ranks(config, [&](Trainer& trainer, int rank) {
          std::vector<std::string> notes;
          ASSERT_TRUE(trainer.resume(notes));
          EXPECT_EQ(notes.size(), 0u) << words(config) << ": " << notes.front();
          for (int step = kSaved; step < kSteps; ++step) trainer.step();
          if (const Summary summary = trainer.summary(); rank == 0) end = summary.params_hash;
        });
        EXPECT_EQ(end, hash) << words(config) << ", " << optimizer;
      }
    }
  }
}

// With two KV heads on four tensor-parallel ranks, two ranks have the same rows in different
// matrices.
TEST(PowerSgdRuns, AreRejectedIfRanksShareRowsOfAMatrix) {
  TrainConfig config = on_cut(tuned("llama-tiny"), {2, 4, 1}, 1);
  config.lora_rank = 0;
  config.grad_compression = "powersgd";
  const std::string told = error_of([&] { on_ranks(config, [](Trainer&, int) {}); });
  EXPECT_TRUE(contains(told, "share the 2 KV heads of \"blocks.0.qkv.weight\"")) << told;
  config.grad_compression = "bf16";
  EXPECT_EQ(error_of([&] { on_ranks(config, [](Trainer&, int) {}); }), "");
}

}  // namespace
}  // namespace tessera::train
