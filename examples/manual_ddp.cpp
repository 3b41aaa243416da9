// Data parallelism by hand: what the engine does at stage 0, without buckets and overlap.
//   build/bin/tessera run -n 2 -- build/bin/manual_ddp
// Trains twice, by hand and with the engine, and compares the parameters bit by bit.
#include <torch/torch.h>

#include <iostream>
#include <vector>

#include "tessera/tessera.h"

namespace {

constexpr double kLearningRate = 0.1;
constexpr int kSteps = 20;

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 3));
}

// Every rank has its own batch; rank and step say which.
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
    // The mean over ranks is the sum of what each divides by their number.
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

}  // namespace

int main() {
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
              << (equal ? "equal in every bit\n" : "DIFFERENT\n");
  }
  return equal ? 0 : 1;
}
