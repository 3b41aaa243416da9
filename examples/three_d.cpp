// A model of your own on dp × tp × pp ranks: here, residual blocks that learn a rule for points.
//   build/bin/three_d
//   build/bin/tessera run -n 8 -- build/bin/three_d dp=2,tp=2,pp=2
//   build/bin/tessera run -n 8 -- build/bin/three_d dp=2,tp=2,pp=2 runs/demo 60   # steps 1 to 60
//   build/bin/tessera run -n 3 -- build/bin/three_d pp=3 runs/demo                # 61 to 100
// Prints the same losses, within rounding, on any mesh, also if a run resumes on another mesh.
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tessera/tessera.h"

constexpr std::int64_t kWidth = 32, kClasses = 4, kBatch = 64;
constexpr int kMicroBatches = 4;

struct LiftImpl : torch::nn::Module {
  LiftImpl() { linear = register_module("linear", torch::nn::Linear(2, kWidth)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Lift);

// A block whose matrices are sharded over the tensor-parallel ranks.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(const tessera::LayerContext& at) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", tessera::ColumnParallelLinear(at.tp, at.linear("up", kWidth, 128)));
    down =
        register_module("down", tessera::RowParallelLinear(at.tp, at.linear("down", 128, kWidth)));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  tessera::ColumnParallelLinear up{nullptr};
  tessera::RowParallelLinear down{nullptr};
};
TORCH_MODULE(Block);

// The last layer returns the loss.
struct LossImpl : torch::nn::Module {
  LossImpl() { linear = register_module("linear", torch::nn::Linear(kWidth, kClasses)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& classes) {
    return torch::nn::functional::cross_entropy(linear(x), classes);
  }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Loss);

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  using torch::nn::AnyModule;
  const auto world = tessera::init();
  const tessera::Mesh mesh(world, argc > 1 ? argv[1] : "dp=1");

  std::vector<tessera::Layer> layers;
  layers.push_back({"lift", [](const auto&) { return AnyModule(Lift()); }});
  for (int i = 0; i < 6; ++i) {
    layers.push_back({"blocks." + std::to_string(i),
                      [](const tessera::LayerContext& at) { return AnyModule(Block(at)); }});
  }
  layers.push_back({"loss", [](const auto&) { return AnyModule(Loss()); }});

  tessera::ParallelOptions options;
  options.micro_batches = kMicroBatches;
  options.recompute = tessera::Recompute::full;
  options.engine = {.stage = 2, .optimizer = tessera::AdamW{.lr = 3e-3}};
  options.initial = [](const tessera::ParamSpec& spec) {
    auto initial = tessera::initial_default(spec);
    if (initial.deviation > 0) initial.deviation = 0.2;
    return initial;
  };
  tessera::ParallelModel model(layers, mesh, options);

  const std::string folder = argc > 2 ? argv[2] : "";
  const int last = argc > 3 ? std::atoi(argv[3]) : 100;
  int done = 0;  // steps of an earlier run, on any mesh, that is saved in the folder
  if (!folder.empty()) {
    if (const auto loaded = tessera::load_if_any(model, folder)) {
      done = static_cast<int>(loaded->step);
      if (world.rank() == 0) {
        std::printf("resumes from step %d, saved on %s\n", done, loaded->axes.text().c_str());
      }
    }
  }

  const std::int64_t rows = kBatch / mesh.axes().dp() / kMicroBatches;  // per micro-batch
  for (int step = done + 1; step <= last; ++step) {
    std::vector<tessera::MicroBatch> batches;
    for (int k = 0; k < kMicroBatches; ++k) {
      const std::int64_t first = step * kBatch + (mesh.dp().rank() * kMicroBatches + k) * rows;
      const at::Tensor i = at::arange(first, first + rows, at::kFloat);
      const at::Tensor x = at::stack({(i * 0.731f).sin(), (i * 0.417f).cos()}, 1);
      batches.push_back({x, (x > 0).to(at::kLong).mul(at::tensor({1, 2})).sum(1)});
    }
    const auto info = model.step(batches);
    if (step % 20 == 0 && world.rank() == 0) std::printf("step %d  loss %.6f\n", step, info.loss);
  }
  if (!folder.empty()) tessera::save(model, folder);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
