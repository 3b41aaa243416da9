// A model of your own with the library's mixture of experts: each point of a plane passes 2 of 8
// small networks, which a router selects for it.
//   build/bin/mixture_of_experts
//   build/bin/tessera run -n 4 -- build/bin/mixture_of_experts dp=4,ep=4   # 2 experts on each rank
// Prints the same losses, within rounding, and the same tokens of each expert on any mesh. The
// balance loss makes the experts' numbers of tokens more equal from line to line.
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "tessera/tessera.h"

constexpr std::int64_t kWidth = 32, kExperts = 8, kRows = 16, kPoints = 32;  // a row has 32 points

struct LiftImpl : torch::nn::Module {
  LiftImpl() { linear = register_module("linear", torch::nn::Linear(2, kWidth)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Lift);

// A residual block. In a transformer the experts replace the MLP after attention.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const tessera::LayerContext& at) {
    tessera::experts::LayerOptions options;
    options.hidden = kWidth;
    options.experts = {.count = kExperts, .per_token = 2, .width = 64, .balance_loss = 0.1};
    options.label = at.name + ".mix";  // its name in the model, for messages and traces
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    // at.experts(): the ranks that share the experts. This rank creates only its own.
    mix = register_module("mix", tessera::experts::MixtureOfExperts(at.experts(), options));
  }
  at::Tensor forward(const at::Tensor& x) { return x + mix(norm(x)); }  // [rows, points, width]
  torch::nn::LayerNorm norm{nullptr};
  tessera::experts::MixtureOfExperts mix{nullptr};
};
TORCH_MODULE(Block);

struct LossImpl : torch::nn::Module {  // the last layer returns the loss
  LossImpl() { linear = register_module("linear", torch::nn::Linear(kWidth, 2)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& targets) {
    return at::mse_loss(linear(x), targets);
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Loss);

// Points, and a rule that differs in each quadrant of the plane: useful to have several experts.
tessera::MicroBatch batch_of(int step, std::int64_t first_row, std::int64_t rows) {
  const std::int64_t first = (step * kRows + first_row) * kPoints;
  const at::Tensor i = at::arange(first, first + rows * kPoints, at::kDouble);
  const at::Tensor x = (i * 0.7312).sin(), y = (i * 0.4179).cos();
  const at::Tensor right = x.gt(0), up = y.gt(0);
  const at::Tensor u = at::where(right, x * y, x - y), v = at::where(up, x + y, -x * y);
  const auto rows_of = [&](const at::Tensor& a, const at::Tensor& b) {
    return at::stack({a, b}, 1).view({rows, kPoints, 2}).to(at::kFloat);
  };
  return {rows_of(x, y), rows_of(u, v)};
}

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  using torch::nn::AnyModule;
  const auto world = tessera::init();
  // ep adds no ranks: it divides the data-parallel ranks into groups that share the experts.
  const tessera::Mesh mesh(world, argc > 1 ? argv[1] : "dp=1");

  std::vector<tessera::Layer> layers;
  layers.push_back({"lift", [](const auto&) { return AnyModule(Lift()); }});
  for (int i = 0; i < 2; ++i) {
    layers.push_back({"blocks." + std::to_string(i),
                      [](const tessera::LayerContext& at) { return AnyModule(Block(at)); }});
  }
  layers.push_back({"loss", [](const auto&) { return AnyModule(Loss()); }});

  tessera::ParallelOptions options;
  options.engine = {.stage = 2, .optimizer = tessera::AdamW{.lr = 1e-2}};
  options.initial = [](const tessera::ParamSpec& spec) {
    auto initial = tessera::initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.2;
    return initial;
  };
  tessera::ParallelModel model(layers, mesh, options);

  const std::int64_t rows = kRows / mesh.axes().dp();  // of this rank
  for (int step = 1; step <= 60; ++step) {
    const auto info = model.step({batch_of(step, mesh.dp().rank() * rows, rows)});
    if (step % 15 != 0) continue;
    const auto loads = model.take_expert_loads();  // since the last call; on every rank
    if (world.rank() != 0) continue;
    std::printf("step %d  loss %.6f\n", step, info.loss);
    for (const tessera::ExpertLoad& load : loads) {
      std::printf("  %s  tokens", load.layer.c_str());
      for (const std::int64_t tokens : load.tokens) std::printf(" %ld", static_cast<long>(tokens));
      std::printf("  busiest %.2f x mean  entropy %.3f\n", load.imbalance(), load.entropy);
    }
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
