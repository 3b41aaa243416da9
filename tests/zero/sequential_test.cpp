// A Sequential before, during and after an engine: its children keep their types, it can be cloned
// and saved.

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <sstream>

#include "tests/zero/oracle.h"

namespace tessera::zero::test {
namespace {

void expect_typed(torch::nn::Sequential& net) {
  EXPECT_NE(net[0]->as<torch::nn::LinearImpl>(), nullptr);
  EXPECT_EQ(&net->at<torch::nn::LinearImpl>(2), net->children()[2].get());
}

void expect_copies(torch::nn::Sequential& net, const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  ASSERT_NE(clone, nullptr);
  const auto params = net->parameters(), copies = clone->parameters();
  ASSERT_EQ(params.size(), copies.size());
  for (std::size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(at::equal(params[i], copies[i]));
  std::stringstream file;
  torch::save(net, file);
  torch::nn::Sequential loaded(torch::nn::Linear(5, 9), torch::nn::Tanh(), torch::nn::Linear(9, 3));
  torch::load(loaded, file);
  EXPECT_TRUE(at::equal(loaded->forward(x), clone->forward(x)));
}

TEST(Features, SequentialKeepsItsChildren) {
  for (int stage = 0; stage < 4; ++stage) {
    std::vector<at::Tensor> results(2);
    over(2, [&](const comm::Group& group) {
      torch::nn::Sequential net(torch::nn::Linear(5, 9), torch::nn::Tanh(),
                                torch::nn::Linear(9, 3));
      const at::Tensor x = numbers({4, 5}, 3);
      expect_typed(net);
      expect_copies(net, x);
      {
        Options options;
        options.stage = stage;
        DataParallel<torch::nn::Sequential> train(net, group, options);
        expect_typed(net);
        for (int step = 0; step < 2; ++step) {
          train.backward(train(x).square().mean());
          train.step();
          expect_typed(net);
        }
        train.synchronize();
        // At stage 3 a rank has no whole parameters to copy outside of a pass.
        if (stage < 3) expect_copies(net, x);
      }
      expect_typed(net);
      if (stage == 3) return;  // nor after the engine is destroyed
      expect_copies(net, x);
      results[static_cast<std::size_t>(group.rank())] = net->forward(x).detach();
    });
    if (stage == 3) continue;
    EXPECT_TRUE(at::equal(results[0], results[1])) << "stage " << stage;
  }
}

}  // namespace
}  // namespace tessera::zero::test
