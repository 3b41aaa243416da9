#include "tessera/train/trainer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tessera/core/errors.h"
#include "tessera/memory/allocator.h"
#include "tessera/train/session.h"

namespace tessera::train {
namespace {

RunConfig small() {
  RunConfig config;
  config.layers = 1;
  config.hidden = 16;
  config.heads = 2;
  config.vocab = 12;
  config.seq = 16;
  config.micro_batch = 1;
  config.steps = 2;
  return config;
}

// Trainers may be made and destroyed on other threads than those that use them. They charge no
// memory to the ledgers of those threads.
TEST(Trainer, DoesNotChangeMemoryOwnersOfThreads) {
  const auto own = std::make_shared<memory::Ledger>("own");
  const memory::OwnerScope scope(own);
  auto first = std::make_unique<Trainer>(small(), comm::Group());
  auto second = std::make_unique<Trainer>(small(), comm::Group());
  EXPECT_EQ(memory::current_ledger(), own);
  std::thread([&] {
    const auto theirs = std::make_shared<memory::Ledger>("theirs");
    const memory::OwnerScope other(theirs);
    EXPECT_GT(first->step().mem_bytes, 0);
    first.reset();
    EXPECT_EQ(memory::current_ledger(), theirs);
    EXPECT_EQ(theirs->counts().total.now, 0);
  }).join();
  EXPECT_EQ(memory::current_ledger(), own);
  // Not destroyed in reverse order.
  auto third = std::make_unique<Trainer>(small(), comm::Group());
  second.reset();
  third->step();
  third.reset();
  EXPECT_EQ(memory::current_ledger(), own);
  EXPECT_EQ(own->counts().total.now, 0);
}

TEST(Trainer, LaunchAndFinishEqualStep) {
  RunConfig config = small();
  config.steps = 6;
  Trainer whole(config, comm::Group()), halves(config, comm::Group());
  for (int step = 1; step <= 6; ++step) {
    const StepMetrics one = whole.step();
    halves.launch();
    EXPECT_EQ(halves.steps_done(), step);
    halves.finish(1);  // on the CPU no step is unfinished
    ASSERT_EQ(halves.history().size(), static_cast<std::size_t>(step));
    const StepMetrics& other = halves.history().back();
    EXPECT_EQ(one.step, other.step);
    EXPECT_EQ(one.loss, other.loss);
    EXPECT_EQ(one.grad_norm, other.grad_norm);
    EXPECT_GT(other.forward_s, 0);
    EXPECT_GT(other.backward_s, 0);
    EXPECT_EQ(other.graph_s, 0);
    EXPECT_FALSE(other.gpu.has_value());
  }
  EXPECT_EQ(whole.summary().params_hash, halves.summary().params_hash);
}

TEST(Trainer, CheckRunDoesNotChangeThreads) {
  const int before = at::get_num_threads();
  RunConfig config = small();
  config.threads = before + 1;
  (void)check_run(config, resolve(config, 2), 2);
  EXPECT_EQ(at::get_num_threads(), before);
  const Trainer trainer(config, comm::Group());
  EXPECT_EQ(at::get_num_threads(), before + 1);
  at::set_num_threads(before);
}

}  // namespace
}  // namespace tessera::train
