// A Sequential whose children are units must behave like the original Sequential.

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/serialize.h>

#include <sstream>

#include "tessera/core/errors.h"
#include "tessera/nn/unit.h"

namespace tessera::nn {
namespace {

struct CountingObserver : UnitObserver {
  void enter_forward(bool) override { ++entered; }
  void leave_forward(bool) override {}
  void enter_backward() override {}
  void leave_backward() override { ++left_backward; }
  int entered = 0, left_backward = 0;
};

struct OwnLayerImpl : torch::nn::Cloneable<OwnLayerImpl> {
  OwnLayerImpl() { reset(); }
  void reset() override { weight = register_parameter("weight", torch::randn({4, 4})); }
  at::Tensor forward(at::Tensor x) { return x.mm(weight); }
  at::Tensor weight;
};
TORCH_MODULE(OwnLayer);

torch::nn::Sequential make_sequential() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Tanh(), OwnLayer(),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
}

// Everything that a user may do with it, with or without units.
void expect_itself(torch::nn::Sequential& model, const at::Tensor& x, const at::Tensor& want) {
  EXPECT_NE(model[0]->as<torch::nn::LinearImpl>(), nullptr);
  EXPECT_NE(model[0]->as<torch::nn::Linear>(), nullptr);
  EXPECT_NE(model[2]->as<OwnLayerImpl>(), nullptr);
  EXPECT_EQ(model[3]->as<torch::nn::LinearImpl>(), nullptr);
  EXPECT_EQ(&model->at<torch::nn::LinearImpl>(0), model->children()[0].get());
  EXPECT_EQ(model->ptr<torch::nn::LayerNormImpl>(3), model->children()[3]);
  EXPECT_EQ(model->named_parameters().keys(),
            (std::vector<std::string>{"0.weight", "0.bias", "2.weight", "3.weight", "3.bias"}));
  EXPECT_TRUE(at::equal(model->forward(x), want));

  auto clone = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone());
  ASSERT_NE(clone, nullptr);
  EXPECT_NE(clone->ptr(0)->as<torch::nn::LinearImpl>(), nullptr);
  EXPECT_NO_THROW(clone->at<OwnLayerImpl>(2));
  EXPECT_TRUE(at::equal(clone->forward(x), want));
  {
    const at::NoGradGuard no_grad;
    clone->parameters()[0].zero_();  // parameters of the clone only
  }
  EXPECT_TRUE(at::equal(model->forward(x), want));

  std::stringstream file;
  torch::save(model, file);
  auto loaded = make_sequential();
  for (at::Tensor& param : loaded->parameters()) param.set_data(param + 1);
  torch::load(loaded, file);
  EXPECT_TRUE(at::equal(loaded->forward(x), want));
}

TEST(Sequential, BehavesTheSameWithUnits) {
  auto model = make_sequential();
  const at::Tensor x = torch::randn({3, 4});
  const at::Tensor want = model->forward(x).detach();
  expect_itself(model, x, want);
  EXPECT_NO_THROW(model->at<OwnLayerImpl>(2));

  const auto observer = std::make_shared<CountingObserver>();
  auto units = find_units(*model);
  ASSERT_EQ(units.size(), 3u);
  for (const FoundUnit& unit : units) unit.unit->observe(observer);
  model->forward(x).sum().backward();
  EXPECT_EQ(observer->entered, 3);
  EXPECT_EQ(observer->left_backward, 2);  // x requires no gradient
  expect_itself(model, x, want);
  // A type without a typed holder, while it is a unit.
  EXPECT_THROW(model->at<OwnLayerImpl>(2), c10::Error);
  const int before = observer->entered;
  std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone())->forward(x);
  EXPECT_EQ(observer->entered, before);  // the clone has no observer

  // A copy of an AnyModule also calls through the unit.
  torch::nn::AnyModule copy = *model->begin();
  copy.forward(x);
  EXPECT_EQ(observer->entered, before + 1);

  release_units(*model);  // units in use are not released
  EXPECT_EQ(find_units(*model)[0].unit, units[0].unit);
  for (const FoundUnit& unit : units) unit.unit->observe(nullptr);
  units[1].unit->set_recompute(Recompute::full);
  release_units(*model);
  EXPECT_EQ(find_units(*model)[1].unit, units[1].unit);
  set_recompute(*model, Recompute::none);
  release_units(*model);
  EXPECT_NO_THROW(model->at<OwnLayerImpl>(2));
  expect_itself(model, x, want);
}

TEST(Sequential, KnownLayersKeepTheirTypes) {
  torch::nn::Sequential model(
      torch::nn::Embedding(5, 4), torch::nn::Conv1d(torch::nn::Conv1dOptions(4, 4, 1)),
      torch::nn::ConvTranspose1d(torch::nn::ConvTranspose1dOptions(4, 4, 1)),
      torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 4)), torch::nn::PReLU());
  const at::Tensor ids = torch::randint(0, 5, {2, 4}, at::kLong);
  const at::Tensor want = model->forward(ids);
  ASSERT_EQ(find_units(*model).size(), 5u);
  EXPECT_NO_THROW(model->at<torch::nn::EmbeddingImpl>(0));
  EXPECT_NO_THROW(model->at<torch::nn::Conv1dImpl>(1));
  EXPECT_NO_THROW(model->at<torch::nn::ConvTranspose1dImpl>(2));
  EXPECT_NO_THROW(model->at<torch::nn::GroupNormImpl>(3));
  EXPECT_NO_THROW(model->at<torch::nn::PReLUImpl>(4));
  EXPECT_TRUE(at::equal(model->forward(ids), want));
}

TEST(Sequential, UnitRequiresOneTensor) {
  struct Two : torch::nn::Module {
    Two() { register_parameter("weight", torch::ones({1})); }
    at::Tensor forward(at::Tensor a, at::Tensor b) { return a + b; }
  };
  torch::nn::Sequential model(Two{});
  const at::Tensor x = torch::ones({2});
  EXPECT_TRUE(at::equal(model->forward(x, x), x + x));
  find_units(*model);
  EXPECT_THROW(model->forward(x, x), UsageError);
  release_units(*model);
  EXPECT_TRUE(at::equal(model->forward(x, x), x + x));
}

}  // namespace
}  // namespace tessera::nn
