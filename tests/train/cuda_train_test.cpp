// Training on a GPU: memory, times and overlapping steps. Skipped without a GPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tessera/comm/dry/backend.h"
#include "tessera/comm/dry/device_backend.h"
#include "tessera/core/errors.h"
#include "tessera/memory/device_memory.h"
#include "tessera/train/trainer.h"

namespace tessera::train {
namespace {

class CudaTrain : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "skipped: no CUDA device here";
  }
  static RunConfig config() {
    RunConfig config;
    config.layers = 4;
    config.hidden = 512;
    config.heads = 8;
    config.vocab = 4000;
    config.seq = 256;
    config.micro_batch = 8;
    config.grad_accum = 2;
    config.steps = 8;
    config.device = Device::cuda;
    config.set("layout", "bf16");
    config.samples = 0;
    return config;
  }
};

TEST_F(CudaTrain, OverlappingStepsEqualSequentialSteps) {
  for (const char* graph : {"off", "auto"}) {
    RunConfig run = config();
    run.set("cuda-graph", graph);
    std::vector<double> losses;
    Trainer whole(run, comm::Group());
    for (int i = 0; i < run.steps; ++i) losses.push_back(whole.step().loss);
    EXPECT_LT(losses.back(), losses.front());

    Trainer halves(run, comm::Group());
    for (int i = 0; i < run.steps; ++i) {
      halves.launch();
      halves.finish(1);
      EXPECT_EQ(halves.history().size(), static_cast<std::size_t>(i));  // one is unfinished
      EXPECT_EQ(halves.steps_done(), i + 1);
    }
    halves.finish();
    ASSERT_EQ(halves.history().size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(halves.history()[i].loss, losses[i], 1e-3 * losses[i]) << graph << i;
      EXPECT_EQ(halves.history()[i].step, static_cast<std::int64_t>(i) + 1);
    }
  }
}

TEST_F(CudaTrain, MeasuresDeviceTimes) {
  RunConfig run = config();
  run.cuda_graph = CudaGraph::off;
  Trainer apart(run, comm::Group());
  for (int i = 0; i < run.steps; ++i) {
    apart.launch();
    apart.finish(1);
  }
  apart.finish();
  for (std::size_t i = 2; i < apart.history().size(); ++i) {
    const StepMetrics& step = apart.history()[i];
    EXPECT_GT(step.forward_s, 0);
    EXPECT_GT(step.backward_s, 0);
    EXPECT_GT(step.optimizer_s, 0);
    EXPECT_EQ(step.graph_s, 0);
    EXPECT_LE(step.forward_s + step.backward_s + step.optimizer_s, step.step_s * 1.01 + 1e-4);
    std::printf("forward %.3f ms, backward %.3f, optimizer %.3f, step %.3f\n", 1e3 * step.forward_s,
                1e3 * step.backward_s, 1e3 * step.optimizer_s, 1e3 * step.step_s);
  }
  run.cuda_graph = CudaGraph::automatic;
  Trainer graph(run, comm::Group());
  for (int i = 0; i < run.steps; ++i) graph.step();
  std::printf("%s", graph.graph_note().c_str());
  const StepMetrics& last = graph.history().back();
  std::printf("graph %.3f ms, step %.3f\n", 1e3 * last.graph_s, 1e3 * last.step_s);
  if (graph.graph_note().find("ran as one") != std::string::npos) {
    EXPECT_GT(last.graph_s, 0);
    EXPECT_EQ(last.forward_s, 0);
    // Replayed steps report the memory of the recorded step.
    EXPECT_GE(last.mem_peak_bytes, graph.history()[1].mem_peak_bytes * 9 / 10);
  }
}

TEST_F(CudaTrain, MeasuredStateEqualsPrediction) {
  for (const char* layout : {"bf16", "fp32"}) {
    for (const char* graph : {"off", "auto"}) {
      RunConfig run = config();
      run.layout = parse_state_layout(layout);
      run.set("cuda-graph", graph);
      Trainer trainer(run, comm::Group());
      for (int i = 0; i < 5; ++i) trainer.step();
      const Summary summary = trainer.summary();
      for (const char* part : {"params", "grads", "optimizer", "activations", "peak"}) {
        const auto got = summary.measured.memory.find(part);
        ASSERT_NE(got, summary.measured.memory.end()) << part;
        const auto want = static_cast<double>(summary.predicted.memory.at(part));
        const double off = static_cast<double>(got->second) / want - 1;
        std::printf("%s graph %s %s: predicted %.0f, measured %lld, %+.2f%%\n", layout, graph, part,
                    want, static_cast<long long>(got->second), 100 * off);
        if (std::string(part) != "activations" && std::string(part) != "peak") {
          EXPECT_LE(std::abs(off), 0.01) << layout << " " << part;
        }
      }
      // The ledger counts all memory that the allocator returned since the trainer was made.
      const auto usage = memory::device_usage(c10::Device(c10::kCUDA, 0));
      ASSERT_TRUE(usage.has_value());
      EXPECT_NEAR(static_cast<double>(trainer.ledger().counts().total.now),
                  static_cast<double>(usage->now), 0.02 * static_cast<double>(usage->now) + 80e6);
    }
  }
}

TEST_F(CudaTrain, ErrorAtMemoryLimitIncludesTheLedger) {
  RunConfig run = config();
  run.micro_batch = 64;
  run.memory_limit = 700'000'000;
  try {
    Trainer trainer(run, comm::Group());
    for (int i = 0; i < 3; ++i) trainer.step();
    FAIL() << trainer.ledger().report();
  } catch (const OutOfMemoryError& error) {
    const std::string text = error.what();
    for (const char* part :
         {"rank 0", "limit of", "params", "optimizer", "activations", "--memory-limit"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
    }
    std::printf("%s\n", text.c_str());
  } catch (const UsageError& error) {
    GTEST_SKIP() << "skipped: " << error.what();
  }
  // The process continues, and a run without a limit succeeds.
  run.memory_limit = 0;
  Trainer trainer(run, comm::Group());
  EXPECT_GT(trainer.step().mem_peak_bytes, 700'000'000);
}

// Muon's batched orthogonalization is part of the graph.
TEST_F(CudaTrain, MuonStepsRunAsAGraph) {
  for (const char* stage : {"0", "2"}) {
    std::vector<std::vector<double>> losses;
    for (const char* graph : {"off", "on"}) {
      RunConfig run = config();
      run.set("optimizer", "muon");
      run.set("zero", stage);
      run.set("cuda-graph", graph);
      Trainer trainer(run, comm::Group());
      std::vector<double>& mine = losses.emplace_back();
      for (int i = 0; i < run.steps; ++i) mine.push_back(trainer.step().loss);
      EXPECT_LT(mine.back(), mine.front());
    }
    for (std::size_t i = 0; i < losses[0].size(); ++i) {
      EXPECT_NEAR(losses[1][i], losses[0][i], 2e-2 * losses[0][i])
          << "stage " << stage << ", " << i;
    }
  }
}

// One rank of four that share sequences. The others are simulated, so losses have no meaning:
// tests/train/meshes_agree.py compares those.
TEST_F(CudaTrain, ContextParallelStepsRunAsAGraph) {
  for (const char* model : {"gpt-tiny", "llama-tiny"}) {
    for (const char* kind : {"ring", "ulysses"}) {
      for (const char* recompute : {"none", "selective", "full"}) {
        for (const char* graph : {"off", "on"}) {
          RunConfig run = config();
          run.set("model", model);
          run.kv_heads = std::string(model) == "gpt-tiny" ? 8 : 4;
          run.backend = BackendName::dry;
          run.set("cp-kind", kind);
          run.set("recompute", recompute);
          run.set("cuda-graph", graph);
          run.axes = Axes{{Axis::cp, 4}};
          const std::string what = std::string(model) + " " + kind + " " + recompute;
          Trainer trainer(run, comm::Group(comm::dry::make_device_backend(
                                   comm::dry::make_backend(1, 4, "world"), {c10::kCUDA, 0})));
          for (int i = 0; i < run.steps; ++i) trainer.step();
          EXPECT_EQ(trainer.graph_note().find("ran as one") != std::string::npos,
                    graph == std::string("on"))
              << what << ": " << trainer.graph_note();
          const Summary summary = trainer.summary();
          for (const char* part : {"activations", "peak"}) {
            const auto want = static_cast<double>(summary.predicted.memory.at(part));
            const auto got = static_cast<double>(summary.measured.memory.at(part));
            std::printf("%s, graph %s: %s predicted %.0f, measured %.0f\n", what.c_str(), graph,
                        part, want, got);
            EXPECT_NEAR(got, want, 0.05 * want + 4e6)
                << what << ", graph " << graph << ": " << part;
          }
        }
      }
    }
  }
}

TEST_F(CudaTrain, ExpertsHaveTheLossesOfTheCpu) {
  for (const char* capacity : {"0", "1"}) {
    std::vector<std::vector<double>> losses;
    for (const Device device : {Device::cpu, Device::cuda}) {
      RunConfig run = config();
      run.layers = 2;
      run.seq = 64;
      run.micro_batch = 4;
      run.hidden = 128;
      run.experts = 8;
      run.experts_per_token = 2;
      run.device = device;
      run.set("layout", "fp32");
      run.set("expert-capacity", capacity);
      run.set("balance-loss", "0.01");
      Trainer trainer(run, comm::Group());
      std::vector<double>& mine = losses.emplace_back();
      for (int i = 0; i < run.steps; ++i) mine.push_back(trainer.step().loss);
      EXPECT_LT(mine.back(), mine.front());
    }
    for (std::size_t i = 0; i < losses[0].size(); ++i) {
      // A token near a capacity's limit, or between two experts, can go the other way.
      EXPECT_NEAR(losses[1][i], losses[0][i], 1e-3 * losses[0][i]) << capacity << ", " << i;
    }
  }
}

// Routing and the products of all experts never wait for the host, so they are part of the
// graph.
TEST_F(CudaTrain, StepsWithExpertsRunAsAGraph) {
  for (const char* capacity : {"0", "1"}) {
    std::vector<std::vector<double>> losses;
    for (const char* graph : {"off", "on"}) {
      RunConfig run = config();
      run.experts = 16;
      run.experts_per_token = 4;
      run.set("cuda-graph", graph);
      run.set("expert-capacity", capacity);
      run.set("balance-loss", "0.01");
      Trainer trainer(run, comm::Group());
      std::vector<double>& mine = losses.emplace_back();
      for (int i = 0; i < run.steps; ++i) mine.push_back(trainer.step().loss);
      EXPECT_LT(mine.back(), mine.front());
      const bool ran = trainer.graph_note().find("ran as one") != std::string::npos;
      EXPECT_EQ(ran, std::string(graph) == "on") << trainer.graph_note();
    }
    for (std::size_t i = 0; i < losses[0].size(); ++i) {
      EXPECT_NEAR(losses[1][i], losses[0][i], 1e-2 * losses[0][i]) << capacity << ", " << i;
    }
  }
}

TEST_F(CudaTrain, HighMatmulPrecisionChangesLossesByRounding) {
  std::vector<std::vector<double>> losses;
  for (const MatmulPrecision precision : {MatmulPrecision::highest, MatmulPrecision::high}) {
    RunConfig run = config();
    run.set("layout", "fp32");
    run.matmul_precision = precision;
    Trainer trainer(run, comm::Group());
    std::vector<double>& mine = losses.emplace_back();
    for (int i = 0; i < run.steps; ++i) mine.push_back(trainer.step().loss);
  }
  EXPECT_NE(losses[0], losses[1]);
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    EXPECT_NEAR(losses[1][i], losses[0][i], 1e-3 * losses[0][i]) << i;
  }
}

TEST_F(CudaTrain, FreesAllMemory) {
  const c10::Device gpu(c10::kCUDA, 0);
  at::empty({1}, at::device(gpu));
  const auto run_once = [&] {
    Trainer trainer(config(), comm::Group());
    trainer.launch();
    trainer.launch();
    trainer.finish(1);
  };
  run_once();
  const std::int64_t after_one = memory::device_usage(gpu)->now;
  run_once();
  EXPECT_LE(memory::device_usage(gpu)->now, after_one + (1 << 20));
}

}  // namespace
}  // namespace tessera::train
