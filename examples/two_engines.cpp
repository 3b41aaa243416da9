// A small GAN: two models trained against each other, each with its own engine, at any ZeRO stage.
// The generator learns a normal distribution with mean 3 and standard deviation 0.5.
//   build/bin/tessera run -n 2 -- build/bin/two_engines 3
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "tessera/tessera.h"

int main(int argc, char** argv) try {
  using namespace torch::nn;
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  const auto world = tessera::init();
  torch::manual_seed(1);
  const int stage = argc > 1 ? std::atoi(argv[1]) : 0;
  Sequential generator(Linear(4, 16), ReLU(), Linear(16, 1));
  Sequential discriminator(Linear(1, 32), ReLU(), Linear(32, 32), ReLU(), Linear(32, 1));
  tessera::DataParallel g(generator, world, {.stage = stage});
  tessera::DataParallel d(discriminator, world, {.stage = stage});
  // Returns the loss of the discriminator if `answer` is right for all samples.
  const auto judged = [&](const torch::Tensor& samples, double answer) {
    const auto scores = d(samples);
    return torch::binary_cross_entropy_with_logits(scores, torch::full_like(scores, answer));
  };

  for (int step = 1; step <= 600; ++step) {
    torch::manual_seed(1000 * step + world.rank());
    const auto real = torch::randn({64, 1}) * 0.5 + 3;
    const auto made = g(torch::randn({64, 4}));
    // Step of the discriminator. Its graph ends at the samples, so backward() of d reaches only d.
    d.backward((judged(real, 1) + judged(made.detach(), 0)) / 2);
    const auto info = d.step({.lr = 2e-3});
    // Step of the generator. A backward pass belongs to one engine, so this takes two passes:
    // through d to the samples, with the gradients of d discarded, and from the samples through g.
    // The gradient of the samples is already scaled for the mean over all ranks.
    const auto samples = made.detach().requires_grad_();
    d.backward(judged(samples, 1));
    d.discard();
    g.backward(made, samples.grad());
    g.step({.lr = 1e-3});
    if (step % 200 == 0 && world.rank() == 0) {
      std::printf("step %d  loss %.12g\n", step, info.loss);
    }
  }
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  const auto samples = g(torch::randn({4096, 4}));
  if (world.rank() == 0) {
    std::printf("mean %.6f  deviation %.6f\n", samples.mean().item<double>(),
                samples.std().item<double>());
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
