// The executor with a ZeRO engine, which is independent of pipelines and sees only the roots.

#include "tessera/zero/engine.h"

#include <gtest/gtest.h>

#include "tessera/comm/mesh.h"
#include "tessera/core/text.h"
#include "tests/pipeline/nets.h"

namespace tessera::pipeline {
namespace {

using test::Layers;

constexpr int kMicros = 4;
constexpr double kRate = 0.05;

struct Stages : torch::nn::Module {
  void add(const test::Layer& layer) {
    for (const at::Tensor& p : layer.params) register_parameter(str("p", count++), p);
  }
  int count = 0;
};

// Returns the parameters after `steps` steps over all micro-batches of all data-parallel ranks.
std::vector<at::Tensor> train_alone(int dp, int chunks, int steps) {
  const Layers layers = test::make_net({});
  const double scale = 1.0 / (dp * kMicros * chunks);
  for (int step = 0; step < steps; ++step) {
    for (int m = 0; m < dp * kMicros; ++m) {
      at::Tensor x;
      for (const auto& layer : layers) x = layer.forward(x, m);
      (x * scale).backward();
    }
    const at::NoGradGuard no_grad;
    for (const auto& layer : layers) {
      for (const at::Tensor& p : layer.params) {
        p.sub_(p.grad(), kRate);
        p.mutable_grad().reset();
      }
    }
  }
  std::vector<at::Tensor> params;
  for (const auto& layer : layers) {
    for (const at::Tensor& p : layer.params) params.push_back(p.detach());
  }
  return params;
}

class WithEngine : public ::testing::TestWithParam<std::tuple<std::string, int>> {};
INSTANTIATE_TEST_SUITE_P(Stages, WithEngine,
                         ::testing::Combine(::testing::Values("gpipe", "1f1b", "interleaved"),
                                            ::testing::Values(0, 1, 2, 3)));

TEST_P(WithEngine, TwoByTwoRanksTrainLikeOneProcess) {
  const auto& [name, zero_stage] = GetParam();
  const Axes axes("dp=2,pp=2");
  const schedule::Schedule schedule = schedule::make(name, axes.pp(), kMicros, 2);
  const std::vector<at::Tensor> want = train_alone(axes.dp(), schedule.chunks, 3);
  test::over(axes.world(), [&, stage = zero_stage](const comm::Group& world) {
    const comm::Mesh mesh(world, axes);
    Layers layers = test::make_net({});
    for (auto& layer : layers) {
      layer.forward = [plain = layer.forward, dp = mesh.dp().rank()](const at::Tensor& x, int m) {
        return plain(x, m + dp * kMicros);
      };
    }
    const int rank = mesh.pp().rank();
    auto module = std::make_shared<Stages>();
    const std::vector<int> bounds = test::bounds_of(layers, schedule.stage_count());
    std::vector<std::size_t> own;  // indices of the parameters of this rank
    std::size_t next = 0;
    for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
      const auto& layer = layers[static_cast<std::size_t>(i)];
      bool here = false;
      for (int c = 0; c < schedule.chunks; ++c) {
        const auto s = static_cast<std::size_t>(schedule.stage(rank, c));
        here = here || (i >= bounds[s] && i < bounds[s + 1]);
      }
      for (std::size_t p = 0; p < layer.params.size(); ++p, ++next) {
        if (here) own.push_back(next);
      }
      if (here) module->add(layer);
    }
    zero::Options zero_options;
    zero_options.stage = stage;
    zero_options.optimizer = zero::SGD{kRate};
    zero_options.micro_batches = kMicros * schedule.chunks;
    zero::Engine engine(module, mesh.dp(), zero_options);

    std::vector<Chunk> chunks = test::chunks_of(layers, schedule, rank);
    for (Chunk& chunk : chunks) {
      chunk.forward = [plain = chunk.forward, &engine](const at::Tensor& x, int micro) {
        return nn::observed(
            engine.root(), [&](at::Tensor in) { return plain(in, micro); }, x);
      };
    }
    Options options;
    options.backward = [&](const at::Tensor& root, const Pass&) { engine.backward(root); };
    Executor executor(schedule, mesh.pp(), chunks, options);
    for (int step = 0; step < 3; ++step) {
      executor.run();
      engine.step();
    }
    const auto params = engine.full_parameters();
    ASSERT_EQ(params.size(), own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(at::allclose(params[i].second, want[own[i]], 1e-4, 1e-6))
          << name << ", stage " << stage << ", parameter " << own[i];
    }
  });
}

}  // namespace
}  // namespace tessera::pipeline
