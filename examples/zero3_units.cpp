// ZeRO-3 by units: every block is gathered before it is used and freed afterwards, so a rank keeps
// its shard of the model and one or two whole blocks at a time.
//   build/bin/tessera run -n 4 -- build/bin/zero3_units 3
// Prints the same losses at every stage, and the number of parameter elements that a rank keeps.
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tessera/tessera.h"

constexpr std::int64_t kWidth = 64;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    up = register_module("up", torch::nn::Linear(kWidth, 4 * kWidth));
    down = register_module("down", torch::nn::Linear(4 * kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(at::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
};

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int i = 0; i < 6; ++i) {  // the holder is Unit instead of one made by TORCH_MODULE
      blocks.push_back(register_module("block" + std::to_string(i), tessera::Unit<BlockImpl>()));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& block : blocks) x = block(x);
    return x;
  }
  std::vector<tessera::Unit<BlockImpl>> blocks;
};
TORCH_MODULE(Net);

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  const auto world = tessera::init();
  torch::manual_seed(1);
  Net net;
  std::int64_t all = 0, kept = 0;
  for (const at::Tensor& p : net->parameters()) all += p.numel();
  tessera::set_recompute(*net, tessera::Recompute::full);  // recomputation works by unit, too
  tessera::DataParallel train(net, world, {.stage = argc > 1 ? std::atoi(argv[1]) : 3});
  for (int step = 1; step <= 20; ++step) {
    const at::Tensor x =
        at::sin(at::arange(8 * kWidth, at::kFloat).view({8, kWidth}) * (1 + world.rank()));
    train.backward(at::mse_loss(train(x), x.flip(1)));
    const auto info = train.step();
    if (step % 5 == 0 && world.rank() == 0) std::printf("step %d  loss %.9f\n", step, info.loss);
  }
  for (const auto& shard : train.state(tessera::zero::StateScope::held)) {
    if (shard.state == "param") kept += shard.values.numel();
  }
  if (world.rank() == 0) std::printf("keeps %ld of %ld elements\n", long(kept), long(all));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
