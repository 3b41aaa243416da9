// Trains the head of a model, then all of it, then the head again. The set of parameters that an
// engine trains is fixed, so each phase has its own engine, and a checkpoint transfers parameters
// and optimizer state from one to the next.
//   build/bin/tessera run -n 2 -- build/bin/freeze_and_unfreeze /tmp/phases 3
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tessera/tessera.h"

struct NetImpl : torch::nn::Module {
  torch::nn::Linear body{nullptr}, head{nullptr};
  NetImpl() {
    body = register_module("body", torch::nn::Linear(2, 32));
    head = register_module("head", torch::nn::Linear(32, 1));
  }
  torch::Tensor forward(torch::Tensor x) { return head(torch::tanh(body(x))); }
};
TORCH_MODULE(Net);

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "usage: freeze_and_unfreeze FOLDER [STAGE]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const int stage = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto world = tessera::init();
  int step = 0;
  for (const bool whole : {false, true, false}) {
    torch::manual_seed(1);
    Net net;
    if (!whole) {
      for (auto& p : net->body->parameters()) p.requires_grad_(false);
    }
    tessera::DataParallel train(net, world, {.stage = stage});
    // Loads moments and counts of parameters trained before. Parameters that were frozen then start
    // with new moments; moments of parameters that are frozen now are ignored.
    if (step > 0) tessera::load(train, folder, {.other_trainable = true});
    for (int end = step + 50; step < end;) {
      torch::manual_seed(1000 * ++step + world.rank());
      const auto x = torch::rand({64, 2}) * 2 - 1;
      train.backward(torch::mse_loss(train(x), (3 * x.prod(1, /*keepdim=*/true)).sin()));
      const auto info = train.step({.lr = 0.02});
      if (step % 25 != 0 || world.rank() != 0) continue;
      std::printf("step %d  loss %.12g\n", step, info.loss);
    }
    const auto counts = train.progress();
    if (world.rank() == 0) {
      const bool body = counts.updates.contains("body.weight");
      std::printf("updates of the head %ld, of the body %ld\n",
                  long(counts.updates.at("head.weight")),
                  body ? long(counts.updates.at("body.weight")) : 0L);
    }
    tessera::save(train, folder, {}, {.keep_last = 1});
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
