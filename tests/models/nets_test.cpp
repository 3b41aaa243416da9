#include "tessera/models/nets.h"

#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tessera/core/errors.h"

namespace tessera::models {
namespace {

TEST(Mlp, HasTheWidthsItWasGiven) {
  Mlp net(std::vector<std::int64_t>{5, 7, 3});
  EXPECT_EQ(net->forward(torch::randn({4, 5})).sizes(), (std::vector<std::int64_t>{4, 3}));
  std::int64_t params = 0;
  for (const at::Tensor& p : net->parameters()) params += p.numel();
  EXPECT_EQ(params, 5 * 7 + 7 + 7 * 3 + 3);
  EXPECT_THROW(Mlp(std::vector<std::int64_t>{5}), UsageError);
}

TEST(ConvNet, LearnsAndKeepsRunningMeans) {
  torch::manual_seed(1);
  ConvNet net(1, 4, 2);
  // Bright images are class 1.
  const at::Tensor labels = torch::arange(16, at::kLong).fmod(2);
  const at::Tensor images = torch::randn({16, 1, 9, 9}) + labels.view({16, 1, 1, 1}).to(at::kFloat);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  float first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(net->forward(images), labels);
    loss.backward();
    optimizer.step();
    (step == 0 ? first : last) = loss.item<float>();
  }
  EXPECT_LT(last, 0.8f * first);
  EXPECT_GT(net->named_buffers()["norm1.running_mean"].abs().sum().item<float>(), 0.0f);
}

}  // namespace
}  // namespace tessera::models
