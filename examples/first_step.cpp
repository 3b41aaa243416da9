// An ordinary LibTorch program, made data-parallel. Runs on one or more ranks, at any stage:
//   build/bin/first_step
//   build/bin/tessera run -n 2 -- build/bin/first_step 3
// All stages print the same losses, digit by digit.
#include <torch/nn/modules/activation.h>  // torch/torch.h also works, but compiles more slowly
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <cstdlib>
#include <exception>
#include <iomanip>
#include <iostream>

#include "tessera/tessera.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Sequential layers{nullptr};
  NetImpl() {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(),
                                                   torch::nn::Linear(64, 64), torch::nn::Tanh(),
                                                   torch::nn::Linear(64, 1)));
  }
  torch::Tensor forward(torch::Tensor x) { return layers->forward(x); }
};
TORCH_MODULE(Net);

int main(int argc, char** argv) try {
  auto world = tessera::init();
  const int stage = argc > 1 ? std::atoi(argv[1]) : 2;
  torch::manual_seed(1);  // the same start in every run
  tessera::DataParallel train(Net(), world, {.stage = stage});

  torch::manual_seed(100 + world.rank());  // every rank draws its own data
  for (int step = 1; step <= 400; ++step) {
    auto x = torch::rand({64, 2}) * 2 - 1;
    auto y = (3 * x.prod(1, /*keepdim=*/true)).sin();
    train.backward(torch::mse_loss(train(x), y));
    auto info = train.step();
    if (step % 100 == 0 && world.rank() == 0) {
      std::cout << "step " << step << "  loss " << std::setprecision(12) << info.loss << std::endl;
    }
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
