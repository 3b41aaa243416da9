// Memory of ZeRO: each stage needs less than the previous one, in the run of `tessera train
// --ranks 2 --zero S`.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

TEST(ZeroMemory, DecreasesFromStageToStage) {
  std::array<std::array<std::int64_t, 2>, 4> peaks{};  // [stage][rank]
  std::array<std::string, 4> hashes;
  for (std::size_t stage = 0; stage < peaks.size(); ++stage) {
    RunConfig config;
    config.ranks = 2;
    config.zero = static_cast<std::int64_t>(stage);
    over(2, [&](const comm::Group& world) {
      Trainer trainer(config, world);
      const auto rank = static_cast<std::size_t>(world.rank());
      for (int step = 0; step < 3; ++step) {
        peaks[stage][rank] = std::max(peaks[stage][rank], trainer.step().mem_peak_bytes);
      }
      const Summary summary = trainer.summary();
      if (rank == 0) hashes[stage] = summary.params_hash;
    });
  }
  for (std::size_t stage = 1; stage < peaks.size(); ++stage) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_LT(peaks[stage][rank], peaks[stage - 1][rank])
          << "stage " << stage << " rank " << rank;
    }
    EXPECT_EQ(hashes[stage], hashes[0]) << "stage " << stage;
  }
}

// Categories and peak of a run match the plan within 3%, in fp32 (in 16 bits they depend on the
// types that the processor multiplies).
TEST(ZeroMemory, CategoriesAndPeakMatchThePlan) {
  using Given = std::vector<std::pair<std::string, std::string>>;
  std::vector<Given> cases = {{{"hidden", "256"}, {"micro-batch", "2"}, {"zero", "2"}},
                              {{"vocab", "4000"}, {"zero", "2"}},
                              {{"model", "llama-tiny"}, {"zero", "2"}},
                              {{"pp", "2"}, {"grad-accum", "4"}},
                              {{"model", "qwen2.5-0.5b"},
                               {"layers", "3"},
                               {"hidden", "128"},
                               {"heads", "4"},
                               {"vocab", "300"},
                               {"zero", "2"}},
                              {{"dropout", "0.1"}, {"attention-dropout", "0.1"}},
                              {{"tp", "2"}}};
  for (const char* stage : {"0", "1", "2", "3"}) cases.push_back({{"zero", stage}});
  for (const char* mode : {"selective", "full"}) {
    cases.push_back({{"zero", "2"}, {"recompute", mode}});
    cases.push_back({{"model", "llama-tiny"}, {"recompute", mode}});
  }
  for (const Given& given : cases) {
    RunConfig config;
    std::string what;
    config.ranks = 2;
    for (const auto& [name, text] : given) {
      set(config, field(name), text);
      what += "--" + name + " " + text + " ";
    }
    over(2, [&](const comm::Group& world) {
      Trainer trainer(config, world);
      for (int step = 0; step < 2; ++step) trainer.step();
      const Summary summary = trainer.summary();
      if (world.rank() != 0) return;
      for (const char* row : {"activations", "buffers", "temporary", "peak"}) {
        const auto want = static_cast<double>(summary.predicted.memory.at(row));
        const auto got = static_cast<double>(summary.measured.memory.at(row));
        EXPECT_NEAR(got, want, 0.03 * want) << what << row;
      }
    });
  }
}

// Muon gathers whole matrices for its update, which is the peak of a step here.
TEST(ZeroMemory, MatricesOfMuonMatchThePlan) {
  for (const int ranks : {1, 2, 3}) {
    for (const char* stage : {"0", "1", "2", "3"}) {
      RunConfig config;
      config.ranks = ranks;
      for (const auto& [name, text] :
           std::vector<std::pair<std::string, std::string>>{{"optimizer", "muon"},
                                                            {"zero", stage},
                                                            {"layers", "2"},
                                                            {"hidden", "256"},
                                                            {"heads", "4"},
                                                            {"seq", "16"},
                                                            {"micro-batch", "1"}}) {
        set(config, field(name), text);
      }
      over(ranks, [&](const comm::Group& world) {
        Trainer trainer(config, world);
        for (int step = 0; step < 2; ++step) trainer.step();
        const Summary summary = trainer.summary();
        for (const char* row : {"temporary", "peak"}) {
          const auto want = static_cast<double>(summary.predicted.memory.at(row));
          const auto got = static_cast<double>(summary.measured.memory.at(row));
          EXPECT_NEAR(got, want, 0.03 * want)
              << row << ", stage " << stage << ", rank " << world.rank() << " of " << ranks;
        }
      });
    }
  }
}

// A model whose parameters alone exceed the limit of a rank is built shard by shard, and trains.
TEST(ZeroMemory, ModelThatFitsOnlyShardedStartsWithinTwoUnits) {
  constexpr std::int64_t kLimit = 12'700'000;
  for (const char* gather : {"copy", "alias"}) {
    RunConfig config;
    for (const auto& [name, text] : std::vector<std::pair<std::string, std::string>>{
             {"zero", "3"},
             {"recompute", "full"},
             {"gather", gather},
             {"optimizer", "sgd"},
             {"momentum", "0"},
             {"layers", "16"},
             {"hidden", "128"},
             {"heads", "4"},
             {"seq", "8"},
             {"dp", "4"},
             {"micro-batch", "1"},
             {"memory-limit", std::to_string(kLimit)}}) {
      set(config, field(name), text);
    }
    const ModelShape model = resolve(config, 4).model;
    ASSERT_GT(4 * model.params(), kLimit);
    on_ranks(config, [&](Trainer& trainer, int) {
      const auto start = trainer.ledger().counts().total;
      EXPECT_LE(start.peak, start.now + 2 * 4 * model.layer_params()) << gather;
      EXPECT_LT(start.now, kLimit) << gather;
      const double first = trainer.step().loss;
      for (int step = 0; step < 4; ++step) EXPECT_LT(trainer.step().loss, 2 * first) << gather;
    });
  }
}

}  // namespace
}  // namespace tessera::train
