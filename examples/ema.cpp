// Moving average of the parameters (EMA), at any ZeRO stage: each rank averages its own shards.
//   build/bin/tessera run -n 2 -- build/bin/ema 3
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>
#include <vector>

#include "tessera/tessera.h"

class Ema {
 public:
  Ema(tessera::Engine& engine, double decay) : engine_(engine), decay_(decay) {
    for (const auto& shard : trained()) averages_.push_back(shard.values.clone());
  }
  // Call it after each step.
  void update() {
    const torch::NoGradGuard no_grad;
    const auto shards = trained();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      averages_[i].lerp_(shards[i].values, 1 - decay_);
    }
  }
  // Collective. Swaps parameters and averages. Call it before and after an evaluation or a save.
  void swap() {
    const torch::NoGradGuard no_grad;
    const auto shards = trained();
    for (std::size_t i = 0; i < shards.size(); ++i) {
      const auto parameters = shards[i].values.clone();
      shards[i].values.copy_(averages_[i]);
      averages_[i].copy_(parameters);
    }
    engine_.resume(engine_.progress());  // the engine takes over the new values
  }

 private:
  // Returns views of the engine's memory: the fp32 master copy if the layout has one.
  std::vector<tessera::StateShard> trained() {
    std::vector<tessera::StateShard> shards;
    for (auto& shard : engine_.state(tessera::StateScope::held)) {
      if (shard.state == "param" && !shard.frozen) shards.push_back(std::move(shard));
    }
    return shards;
  }
  tessera::Engine& engine_;
  double decay_;
  std::vector<torch::Tensor> averages_;
};

int main(int argc, char** argv) try {
  const auto world = tessera::init();
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  tessera::DataParallel train(net, world, {.stage = argc > 1 ? std::atoi(argv[1]) : 0});
  Ema ema(train, 0.99);
  const auto loss_at = [&](int seed) {
    torch::manual_seed(seed);
    const auto x = torch::rand({64, 2}) * 2 - 1;
    return torch::mse_loss(train(x), (3 * x.prod(1, /*keepdim=*/true)).sin());
  };
  const auto evaluate = [&](const char* what) {
    const torch::NoGradGuard no_grad;
    const double loss = loss_at(7).item<double>();
    if (world.rank() == 0) std::printf("%s: loss %.12g\n", what, loss);
  };
  for (int step = 1; step <= 200; ++step) {
    train.backward(loss_at(1000 * step + world.rank()));
    train.step({.lr = 0.05});
    ema.update();
  }
  evaluate("parameters");
  ema.swap();
  evaluate("averages");
  ema.swap();
  evaluate("parameters again");
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
