// The oracle on CUDA tensors: ranks as processes that share one GPU, over shm (staged through
// pinned memory) and over nccl. Skipped without a GPU.

#include <gtest/gtest.h>

#include "tests/comm/cuda_cases.h"
#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

using namespace comm::testing;

// All stages in one process: equal bits, the formula's bytes, and (fp32) what one CPU process gets.
void compare_stages(const comm::Group& group, bool ordered) {
  at::globalContext().setBenchmarkCuDNN(false);
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setAllowTF32CuDNN(false);
  for (const std::string net : {"mlp", "conv", "tied", "odd"}) {
    for (const StateLayout& layout : state_layouts()) {
      for (const int micro_batches : {1, 2}) {
        std::vector<Result> stages;
        Case run;
        for (int stage = 0; stage < 4; ++stage) {
          run.net = net;
          run.ranks = group.size();
          run.device = c10::Device(c10::kCUDA, 0);
          run.options.stage = stage;
          run.options.layout = layout;
          run.options.micro_batches = micro_batches;
          run.options.clip_norm = 0.5;
          run.options.bucket_bytes = 300;
          run.options.optimizer = AdamW{.lr = 1e-2};
          stages.push_back(train(group, run));
          EXPECT_EQ(stages.back().sent, stages.back().expected) << run.describe();
        }
        // A ring of more than two ranks adds in an order of its own, and so may not be equal.
        if (!ordered) continue;
        EXPECT_EQ(stages[0].hash, stages[1].hash) << run.describe();
        EXPECT_EQ(stages[2].hash, stages[3].hash) << run.describe();
        if (micro_batches == 1) {
          EXPECT_EQ(stages[0].hash, stages[2].hash) << run.describe();
        }
        if (layout.name != "fp32" || net == std::string("odd")) continue;
        const Result alone = train_alone(run);
        for (std::size_t step = 0; step < alone.losses.size(); ++step) {
          EXPECT_NEAR(stages[3].losses[step], alone.losses[step], 1e-4) << run.describe();
        }
      }
    }
  }
}

void compare_recompute(const comm::Group& group) {
  for (const int stage : {0, 3}) {
    Case run;
    run.net = "tied";
    run.device = c10::Device(c10::kCUDA, 0);
    run.options.stage = stage;
    const Result want = train(group, run);
    for (const auto mode : {nn::Recompute::selective, nn::Recompute::full}) {
      run.recompute = mode;
      EXPECT_EQ(train(group, run).hash, want.hash) << nn::name(mode) << " stage " << stage;
    }
  }
}

TEST(EngineOnCuda, TwoRanksOverSharedMemory) {
  NEEDS_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers>) {
    const comm::Group group(host);
    compare_stages(group, /*ordered=*/true);
    compare_recompute(group);
  });
}

TEST(EngineOnCuda, OneRankOverNccl) {
  NEEDS_NCCL();
  run_gpu_ranks(1, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers> peers) {
    compare_stages(comm::Group(comm::nccl::make_backend(host, peers, 0, {})), /*ordered=*/true);
  });
}

TEST(EngineOnCuda, TwoRanksOverNccl) {
  NEEDS_SHARED_GPU();
  run_gpu_ranks(2, [](std::shared_ptr<comm::Backend> host, std::shared_ptr<comm::Peers> peers) {
    compare_stages(comm::Group(comm::nccl::make_backend(host, peers, 0, {})), /*ordered=*/true);
  });
}

}  // namespace
}  // namespace tessera::zero::test
