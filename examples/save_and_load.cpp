// Training that resumes where it stopped, on any number of ranks and at any stage:
//   build/bin/save_and_load runs/demo 50                                    # steps 1 to 50
//   build/bin/tessera run -n 2 -- build/bin/save_and_load runs/demo 100 3   # 51 to 100, stage 3
// With the same number of ranks it prints the losses of one run of 100 steps, digit by digit.
#include <torch/torch.h>

#include <cstdlib>
#include <exception>
#include <iomanip>
#include <iostream>
#include <string>

#include "tessera/tessera.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};  // its running means are buffers, which are also saved
  NetImpl() {
    first = register_module("first", torch::nn::Linear(2, 32));
    norm = register_module("norm", torch::nn::BatchNorm1d(32));
    second = register_module("second", torch::nn::Linear(32, 1));
  }
  torch::Tensor forward(torch::Tensor x) { return second(torch::relu(norm(first(x)))); }
};
TORCH_MODULE(Net);

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::cerr << "usage: save_and_load FOLDER STEPS [STAGE]\n";
    return 2;
  }
  const std::string folder = argv[1];
  const int steps = std::atoi(argv[2]), stage = argc > 3 ? std::atoi(argv[3]) : 1;
  auto world = tessera::init();
  torch::manual_seed(1);
  tessera::DataParallel train(Net(), world, {.stage = stage});

  // Loads the newest checkpoint, if there is one: parameters, buffers, moments, counts and extras.
  int done = 0;
  if (auto loaded = tessera::load_if_any(train, folder)) done = std::stoi(loaded->extra["done"]);

  tessera::AsyncSave saver(train, folder, {.keep_last = 2});
  for (int step = done + 1; step <= steps; ++step) {
    torch::manual_seed(1000 * step + world.rank());  // the same data after a restart
    auto x = torch::rand({64, 2}) * 2 - 1;
    auto y = (3 * x.prod(1, /*keepdim=*/true)).sin();
    train.backward(torch::mse_loss(train(x), y));
    auto info = train.step();
    if (step % 25 != 0) continue;
    // Copies the state and returns; a thread writes the files.
    saver.start(train, {{"done", std::to_string(step)}});
    if (world.rank() == 0) {
      std::cout << "step " << step << "  loss " << std::setprecision(12) << info.loss << std::endl;
    }
  }
  saver.wait();
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
