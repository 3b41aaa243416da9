// Data parallelism by hand: the engine's stage 0, without buckets and overlap.
//   build/bin/tessera run -n 2 -- build/bin/manual_ddp
// Trains twice, by hand and with the engine, and compares the parameters bit by bit. Then prints
// the time of a step of a larger net by hand, with the engine, and without communication.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <utility>
#include <vector>

#include "tessera/tessera.h"

namespace {

constexpr double kLearningRate = 0.1;
constexpr int kSteps = 20;

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 3));
}

// Returns the batch of a rank and a step.
at::Tensor batch(int rank, int step) {
  return torch::sin(torch::arange(32, at::kFloat).view({8, 4}) * (1 + rank) + step);
}
at::Tensor loss_of(const at::Tensor& y, const at::Tensor& x) {
  return torch::mse_loss(y, x.narrow(1, 0, 3) * x.narrow(1, 1, 3));
}

void train_by_hand(torch::nn::Sequential model, const tessera::Group& world) {
  // All ranks start from the parameters of rank 0.
  for (const at::Tensor& p : model->parameters()) world.broadcast(p.detach(), 0).wait();

  torch::optim::SGD optimizer(model->parameters(), kLearningRate);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = batch(world.rank(), step);
    optimizer.zero_grad();
    // Each rank divides its loss by the number of ranks, so the sum of gradients is their mean.
    (loss_of(model->forward(x), x) * (1.0 / world.size())).backward();
    for (const at::Tensor& p : model->parameters()) world.all_reduce(p.grad()).wait();
    optimizer.step();
  }
}

void train_with_engine(torch::nn::Sequential model, const tessera::Group& world) {
  tessera::zero::Options options;
  options.optimizer = [](std::vector<torch::optim::OptimizerParamGroup> groups) {
    return std::make_unique<torch::optim::SGD>(std::move(groups), kLearningRate);
  };
  tessera::DataParallel train(model, world, options);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor x = batch(world.rank(), step);
    train.backward(loss_of(train(x), x));
    train.step();
  }
}

// Median seconds of a step, and bytes that this rank sends per step.
struct Cost {
  double seconds = 0;
  double sent = 0;
};
template <typename Step>
Cost cost_of(const tessera::Group& world, Step step) {
  constexpr int kRounds = 15;
  std::vector<double> seconds;
  step();  // warm-up: allocates memory, starts threads
  const auto before = world.traffic().sent_bytes;
  for (int round = 0; round < kRounds; ++round) {
    world.barrier();
    const auto began = std::chrono::steady_clock::now();
    step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[kRounds / 2], double(world.traffic().sent_bytes - before) / kRounds};
}

void show_costs(const tessera::Group& world) {
  const auto make = [] {
    torch::nn::Sequential net;
    for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(384, 384));
    return net;
  };
  const at::Tensor x = torch::sin(torch::arange(32 * 384, at::kFloat)).view({32, 384});
  auto alone = make(), by_hand = make();
  const auto step_of = [&](torch::nn::Sequential& net, bool communicate) {
    net->zero_grad();
    torch::mse_loss(net->forward(x), x).backward();
    if (communicate) {
      for (const at::Tensor& p : net->parameters()) world.all_reduce(p.grad()).wait();
    }
    const at::NoGradGuard no_grad;
    for (const at::Tensor& p : net->parameters()) p.sub_(p.grad(), kLearningRate);
  };
  const Cost without = cost_of(world, [&] { step_of(alone, false); });
  const Cost hand = cost_of(world, [&] { step_of(by_hand, true); });
  tessera::DataParallel train(make(), world, {.optimizer = tessera::SGD{.lr = kLearningRate}});
  const Cost engine = cost_of(world, [&] {
    train.backward(torch::mse_loss(train(x), x));
    train.step();
  });
  if (world.rank() != 0) return;
  for (const auto& [name, cost] :
       {std::pair{"without communication", without}, std::pair{"by hand", hand},
        std::pair{"with the engine", engine}}) {
    std::printf("%-22s %7.2f ms a step  %.2f MB sent\n", name, 1e3 * cost.seconds, cost.sent / 1e6);
  }
}

}  // namespace

int main() try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // line-buffered, also in pipes
  const tessera::Group world = tessera::init();
  torch::manual_seed(world.rank());
  torch::nn::Sequential by_hand = make_model(), with_engine = make_model();
  {
    const at::NoGradGuard no_grad;
    const auto from = by_hand->parameters(), to = with_engine->parameters();
    for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
  }
  train_by_hand(by_hand, world);
  train_with_engine(with_engine, world);

  bool equal = true;
  const auto a = by_hand->named_parameters(), b = with_engine->named_parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    equal = equal && at::equal(a[i].value(), b[i].value());
  }
  if (world.rank() == 0) {
    std::cout << "after " << kSteps << " steps on " << world.size() << " ranks the parameters are "
              << (equal ? "equal in every bit" : "DIFFERENT") << std::endl;
  }
  show_costs(world);
  return equal ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
