// What ZeRO is for: each stage needs less memory than the one before, in the run that `tessera
// train --ranks 2 --zero S` makes.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "tessera/comm/threads.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace {

TEST(ZeroMemory, FallsFromStageToStage) {
  std::array<std::array<std::int64_t, 2>, 4> peaks{};  // [stage][rank]
  std::array<std::string, 4> hashes;
  for (std::size_t stage = 0; stage < peaks.size(); ++stage) {
    TrainConfig config;
    config.ranks = 2;
    config.zero = static_cast<std::int64_t>(stage);
    comm::Options options;
    options.timeout = std::chrono::seconds(120);
    comm::run_threads(
        2,
        [&](std::shared_ptr<comm::Backend> backend) {
          const comm::Group world(std::move(backend));
          Trainer trainer(config, world);
          const auto rank = static_cast<std::size_t>(world.rank());
          for (int step = 0; step < 3; ++step) {
            peaks[stage][rank] = std::max(peaks[stage][rank], trainer.step().mem_peak_bytes);
          }
          const Summary summary = trainer.summary();
          if (rank == 0) hashes[stage] = summary.params_hash;
        },
        options);
  }
  for (std::size_t stage = 1; stage < peaks.size(); ++stage) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      EXPECT_LT(peaks[stage][rank], peaks[stage - 1][rank])
          << "stage " << stage << " rank " << rank;
    }
    EXPECT_EQ(hashes[stage], hashes[0]) << "stage " << stage;
  }
}

}  // namespace
}  // namespace tessera::train
