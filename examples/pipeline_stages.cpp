// A pipeline: consecutive layers of a model on four ranks, which exchange micro-batches.
//   build/bin/pipeline_stages
//   build/bin/tessera run -n 4 -- build/bin/pipeline_stages 1f1b
// Prints the same losses, within rounding, on one rank and on four, with every schedule.
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tessera/tessera.h"

constexpr std::int64_t kWidth = 32, kRows = 8;
constexpr int kMicroBatches = 8;

struct LayerImpl : torch::nn::Module {
  LayerImpl() { linear = register_module("linear", torch::nn::Linear(kWidth, kWidth)); }
  at::Tensor forward(const at::Tensor& x) { return x + linear(x).tanh(); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Layer);

struct LossImpl : torch::nn::Module {  // the last layer also takes the targets
  LossImpl() { linear = register_module("linear", torch::nn::Linear(kWidth, kWidth)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) {
    return at::mse_loss(linear(x), y);
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Loss);

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  using torch::nn::AnyModule;
  const auto world = tessera::init();
  const tessera::Mesh mesh(world, tessera::Axes("pp=" + std::to_string(world.size())));
  std::vector<tessera::Layer> layers;
  for (int i = 0; i < 7; ++i) {
    layers.push_back(
        {"layers." + std::to_string(i), [](const auto&) { return AnyModule(Layer()); }});
  }
  layers.push_back({"loss", [](const auto&) { return AnyModule(Loss()); }});

  tessera::ParallelOptions options;
  options.schedule = argc > 1 ? argv[1] : "1f1b";
  options.micro_batches = kMicroBatches;
  options.engine.optimizer = tessera::AdamW{.lr = 3e-3};
  tessera::ParallelModel model(layers, mesh, options);

  for (int step = 1; step <= 30; ++step) {
    std::vector<tessera::MicroBatch> batches;
    for (int k = 0; k < kMicroBatches; ++k) {
      const at::Tensor x =
          at::sin(at::arange(kRows * kWidth, at::kFloat).view({kRows, kWidth}) * (1 + k));
      batches.push_back({x, x.flip(1)});
    }
    const auto info = model.step(batches);
    if (step % 10 == 0 && world.rank() == 0) std::printf("step %d  loss %.6f\n", step, info.loss);
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
