// [Note: recovery] with ranks that are threads: what a trainer keeps, and steps that a loss
// interrupts. The reference is the same run with checkpoints and another number of replicas.

#include "tessera/train/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/comm/local_peers.h"
#include "tessera/comm/shm/backend.h"
#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tests/temporary_folder.h"
#include "tests/text.h"
#include "tests/train/small_runs.h"

namespace tessera::train {
namespace {

// Time at which a rank is lost: during the nth call with this label.
struct Fault {
  std::string label;
  int times = 0;
  // The call succeeds for the other ranks. This one fails when process 0 has begun the next step.
  bool is_result_lost = false;
};
constexpr const char* kTokens = "tokens";  // first call of a step

// Passes all calls on to another backend, and fails the one of a fault.
class FaultyBackend final : public comm::Backend {
 public:
  struct Count {
    Fault fault;
    int process = 0;
    std::shared_ptr<std::atomic<int>> begun;  // steps of process 0
    int calls = 0;
  };
  FaultyBackend(std::shared_ptr<Backend> inner, std::shared_ptr<Count> count)
      : inner_(std::move(inner)), count_(std::move(count)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string kind() const override { return inner_->kind(); }
  std::string name() const override { return inner_->name(); }
  comm::Work submit(comm::Collective call, comm::Attachments attachments) override {
    struct Failed final : comm::WorkState {
      Failed(comm::Work w, std::shared_ptr<Count> c) : work(std::move(w)), count(std::move(c)) {}
      void wait() override {
        work.wait();
        while (*count->begun <= count->fault.times) std::this_thread::yield();
        throw PeerError("lost", PeerError::kUnknownRank);
      }
      bool done() const override { return false; }
      comm::Work work;
      std::shared_ptr<Count> count;
    };
    if (count_->process == 0 && call.label == kTokens) ++*count_->begun;
    const bool fails = call.label == count_->fault.label && ++count_->calls == count_->fault.times;
    if (fails && !count_->fault.is_result_lost) {
      // Process 0 has finished the step before.
      while (call.label == kTokens && *count_->begun < count_->fault.times) {
        std::this_thread::yield();
      }
      throw PeerError("lost", PeerError::kUnknownRank);
    }
    comm::Work work = inner_->submit(std::move(call), std::move(attachments));
    return fails ? comm::Work(std::make_shared<Failed>(std::move(work), count_)) : work;
  }
  std::shared_ptr<comm::SymmetricMemory> symmetric(std::size_t bytes) override {
    return inner_->symmetric(bytes);
  }
  std::shared_ptr<Backend> subgroup(std::span<const int> members, std::string name) override {
    return std::make_shared<FaultyBackend>(inner_->subgroup(members, std::move(name)), count_);
  }
  std::shared_ptr<Backend> partition(std::span<const int> members, std::string name) override {
    return std::make_shared<FaultyBackend>(inner_->partition(members, std::move(name)), count_);
  }
  comm::TrafficCounts traffic() const override { return inner_->traffic(); }
  bool shares_memory() const override { return inner_->shares_memory(); }
  bool takes_parts() const override { return inner_->takes_parts(); }

 private:
  const std::shared_ptr<Backend> inner_;
  const std::shared_ptr<Count> count_;
};

// Runs `body` on ranks that are threads.
void on_threads(int ranks, const std::function<void(const std::shared_ptr<comm::Peers>&,
                                                    std::shared_ptr<comm::Backend>)>& body) {
  const std::vector<std::shared_ptr<comm::Peers>> peers = comm::make_local_peers(ranks);
  std::vector<int> members;
  for (int r = 0; r < ranks; ++r) members.push_back(r);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const auto own = nth(peers, r);
      body(own, comm::shm::make_backend(own, members, "world", {}));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// One generation of a run: its processes by rank, and its last step. Each fault ends it for a
// process.
struct Phase {
  std::vector<int> processes;
  int replicas = 1;
  std::int64_t last_step = 0;
  std::map<int, Fault> faults = {};
};

struct Losses {
  std::map<std::int64_t, double> losses;  // by step
  std::string hash;
};

// Runs the phases with state that is handed over in memory.
Losses hand_over(const RunConfig& config, const std::vector<Phase>& phases) {
  Losses out;
  std::mutex mutex;
  const Resolved resolved = resolve(config, static_cast<int>(config.axes.world()));
  std::map<int, HandOver> states;
  for (const Phase& phase : phases) {
    for (const int process : phase.processes) states[process];
  }
  for (std::size_t p = 0; p < phases.size(); ++p) {
    const Phase& phase = phases[p];
    if (p > 0) {  // those that are not in this generation have no state in the next one
      for (auto& [process, state] : states) {
        const auto& members = phase.processes;
        if (std::find(members.begin(), members.end(), process) == members.end()) state.drop();
      }
    }
    const RunConfig now = with_replicas(config, resolved, phase.replicas);
    const auto begun = std::make_shared<std::atomic<int>>(0);
    on_threads(
        static_cast<int>(phase.processes.size()),
        [&](const std::shared_ptr<comm::Peers>& peers, std::shared_ptr<comm::Backend> backend) {
          const int rank = backend->rank(), process = nth(phase.processes, rank);
          auto count = std::make_shared<FaultyBackend::Count>();
          count->process = process;
          count->begun = begun;
          const auto fault = phase.faults.find(process);
          if (fault != phase.faults.end()) count->fault = fault->second;
          comm::Group world(std::make_shared<FaultyBackend>(std::move(backend), count));
          HandOver& state = states.at(process);
          const bool takes = state.prepare(now, resolve(now, world.size()), world, p > 0);
          EXPECT_EQ(takes, p > 0);
          state.trainer = std::make_unique<Trainer>(now, world);
          Trainer& trainer = *state.trainer;
          if (takes) {
            state.give_to(trainer, world);
          } else {
            state.start();
          }
          state.is_interrupted = false;
          try {
            while (trainer.steps_done() < phase.last_step) trainer.step();
            EXPECT_EQ(trainer.steps_done(), phase.last_step);
            if (!phase.faults.empty()) trainer.agree(0);  // a process of a fault is not there
            const std::string hash = trainer.summary().params_hash;
            const std::lock_guard lock(mutex);
            if (rank == 0) out.hash = hash;
          } catch (const PeerError&) {
            state.is_interrupted = true;
            EXPECT_FALSE(phase.faults.empty());
            peers->report({comm::Failure::Kind::peer, -1, rank, "a rank was lost"});
          }
          if (rank != 0 || p + 1 < phases.size()) return;
          for (const StepMetrics& step : trainer.history()) out.losses[step.step] = step.loss;
        });
  }
  for (auto& [process, state] : states) state.drop();
  return out;
}

// Runs the phases with a checkpoint between two of them.
Losses with_checkpoints(RunConfig config, const std::vector<Phase>& phases) {
  const TemporaryFolder folder;
  Losses out;
  config.save = folder / "run";
  config.async_save = false;
  const Resolved resolved = resolve(config, static_cast<int>(config.axes.world()));
  for (const Phase& phase : phases) {
    RunConfig now = with_replicas(config, resolved, phase.replicas);
    now.resume = &phase == &phases.front() ? "none" : "auto";
    over(static_cast<int>(now.axes.world()), [&](const comm::Group& world) {
      Trainer trainer(now, world);
      std::vector<std::string> notes;
      trainer.resume(notes);
      while (trainer.steps_done() < phase.last_step) {
        const StepMetrics step = trainer.step();
        if (world.rank() == 0) out.losses[step.step] = step.loss;
      }
      trainer.save();
      trainer.finish_saving();
      const std::string hash = trainer.summary().params_hash;
      if (world.rank() == 0) out.hash = hash;
    });
  }
  return out;
}

RunConfig run_on(const Axes& axes, int zero, const std::string& layout = "fp32") {
  RunConfig config = small_run("gpt-tiny", 12, 1e-2);
  config.axes = axes;
  config.zero = zero;
  config.layout = parse_state_layout(layout);
  config.global_batch = 12;
  config.micro_batch = 1;
  config.dropout = 0.1;
  return config;
}

void expect_equal(const RunConfig& config, const std::vector<Phase>& phases,
                  const std::vector<Phase>& without_faults) {
  const Losses got = hand_over(config, phases);
  const Losses want = with_checkpoints(config, without_faults);
  EXPECT_EQ(got.hash, want.hash) << words(config);
  EXPECT_EQ(got.losses, want.losses) << words(config);  // of each step once, bit by bit
  EXPECT_EQ(got.losses.size(), static_cast<std::size_t>(config.steps)) << words(config);
}

TEST(Recovery, StatePassesToOtherNumbersOfReplicasAndToReplacements) {
  const std::vector<Phase> data = {{{0, 1, 2}, 3, 4}, {{0, 2}, 2, 7}, {{0, 2, 1}, 3, 12}};
  for (const char* layout : {"fp32", "bf16"}) {
    expect_equal(run_on("dp=3", 0, layout), data, data);
  }
  const std::vector<Phase> four = {{{0, 1, 2, 3}, 2, 4}, {{2, 3}, 1, 7}, {{2, 3, 0, 1}, 2, 12}};
  for (const int zero : {1, 2, 3}) {
    expect_equal(run_on("dp=4,dp_replicate=2", zero, zero == 3 ? "bf16" : "fp32"), four, four);
  }
  expect_equal(run_on("dp=2,tp=2", 0), four, four);
}

// The outer axis of a mesh with a pipeline is pp, so ranks 0 and 2 are one replica.
TEST(Recovery, ReplicasOfAPipelineAreNotAdjacent) {
  const std::vector<Phase> phases = {{{0, 1, 2, 3}, 2, 4}, {{1, 3}, 1, 7}, {{1, 0, 3, 2}, 2, 12}};
  expect_equal(run_on("dp=2,pp=2", 0), phases, phases);
}

constexpr const char* kNorm = "norm, loss and used parameters";

// Process 2 (or the replica of 2 and 3) is lost in step 5.
void expect_interrupted(const std::map<int, Fault>& faults, std::int64_t last) {
  for (const int zero : {0, 2, 3}) {
    const bool hybrid = zero > 0;
    const RunConfig config = run_on(hybrid ? "dp=4,dp_replicate=2" : "dp=3", zero);
    const std::vector<int> all = hybrid ? std::vector{0, 1, 2, 3} : std::vector{0, 1, 2};
    const int before = hybrid ? 2 : 3, after = hybrid ? 1 : 2;
    expect_equal(config, {{all, before, 12, faults}, {{0, 1}, after, 12}},
                 {{all, before, last}, {{0, 1}, after, 12}});
  }
}

TEST(Recovery, AStepThatNoRankHasDecidedIsDoneAgain) { expect_interrupted({{2, {kNorm, 5}}}, 4); }

// Rank 0 gets the outcome of step 5 and updates, and rank 1 does not get it.
TEST(Recovery, AStepThatOneRankHasDecidedIsCompletedByAll) {
  expect_interrupted({{1, {kNorm, 5, true}}, {2, {kNorm, 6}}}, 5);
}

TEST(Recovery, ALossBetweenTwoStepsKeepsTheStep) { expect_interrupted({{2, {kTokens, 6}}}, 5); }

TEST(Recovery, RefusesToContinueWithoutState) {
  const RunConfig config = run_on("dp=2", 0);
  over(2, [&](const comm::Group& world) {
    HandOver state;
    const Resolved resolved = resolve(config, 2);
    EXPECT_TRUE(contains(error_of([&] { state.prepare(config, resolved, world, true); }),
                         "No replica has the state"));
    EXPECT_FALSE(state.prepare(config, resolved, world, false));
  });
}

TEST(Recovery, KeepsTheGlobalBatch) {
  RunConfig config = run_on("dp=4", 0);
  config.global_batch = 16;
  config.micro_batch = 2;
  const Resolved resolved = resolve(config, 4);
  EXPECT_EQ(replicas_that_fit(config, resolved, 4), 4);
  EXPECT_EQ(replicas_that_fit(config, resolved, 3), 2);  // 3 · 2 does not divide 16
  EXPECT_EQ(replicas_that_fit(config, resolved, 1), 1);
  EXPECT_EQ(replicas_that_fit(config, resolved, 0), 0);
  EXPECT_EQ(resolve(with_replicas(config, resolved, 2), 2).grad_accum, 4);
}

}  // namespace
}  // namespace tessera::train
