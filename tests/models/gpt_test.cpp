// GPT-2 compared with the same network of ATen's operations and autograd.

#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>
#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/models/language_model.h"
#include "tests/models/plain_gpt.h"

namespace tessera::models {
namespace {

ModelShape small() { return gpt_shape(2, 24, 3, 50, 140); }

std::int64_t count(const torch::nn::Module& model) {
  std::int64_t n = 0;
  for (const at::Tensor& p : model.parameters()) n += p.numel();
  return n;
}

std::map<std::string, at::Tensor> by_name(const torch::nn::Module& model) {
  std::map<std::string, at::Tensor> all;
  for (const auto& item : model.named_parameters()) all[item.key()] = item.value();
  return all;
}

TEST(Gpt, HasTheParametersOfItsShape) {
  for (const ModelShape& shape : model_shapes()) {
    if (!shape.name.starts_with("gpt")) continue;
    const auto model = make_model(shape, {}, 0, at::TensorOptions(at::kMeta));
    EXPECT_EQ(count(*model), shape.params()) << shape.name;
    EXPECT_EQ(nn::find_units(*model).size(), static_cast<std::size_t>(shape.layers));
  }
  const PlainGpt plain(small());
  EXPECT_EQ(count(*plain), small().params());
}

TEST(Gpt, InitializationDependsOnlyOnSeedAndNames) {
  const ModelShape shape = small();
  const auto model = make_model(shape, {}, 7), other = make_model(shape, {}, 8);
  const auto bf16 = make_model(shape, {}, 7, at::TensorOptions(at::kBFloat16));
  const PlainGpt plain(shape, 7);
  const auto ours = by_name(*model), theirs = by_name(*plain);
  ASSERT_EQ(ours.size(), theirs.size());
  for (const auto& [name, param] : ours) {
    ASSERT_TRUE(theirs.count(name)) << name;
    EXPECT_TRUE(param.equal(theirs.at(name))) << name;
    EXPECT_TRUE(param.to(at::kBFloat16).equal(by_name(*bf16).at(name))) << name;
    if (param.dim() == 2) {
      EXPECT_FALSE(param.equal(by_name(*other).at(name))) << name;
      const bool ends_branch = name.find("proj") != std::string::npos;
      const double deviation = ends_branch ? 0.02 / std::sqrt(4.0) : 0.02;
      EXPECT_NEAR(param.std().item<double>(), deviation, 0.15 * deviation) << name;
      EXPECT_NEAR(param.mean().item<double>(), 0, 0.15 * deviation) << name;
    } else {
      const bool is_one = name.find("bias") == std::string::npos;
      EXPECT_TRUE(param.equal(torch::full_like(param, is_one ? 1 : 0))) << name;
    }
  }
  const at::Tensor& w = ours.at("blocks.1.fc.weight");
  const Philox random(7, stream_of("blocks.1.fc.weight"));
  EXPECT_EQ(w[3][5].item<float>(), 0.02f * random.normal(3 * 24 + 5));
}

// Compares outputs, loss and gradients with the same network of ATen's operations.
void compare(at::ScalarType type, std::int64_t tokens, double tolerance,
             nn::Recompute mode = nn::Recompute::none) {
  const ModelShape shape = small();
  const auto model = make_model(shape, {}, 3, at::TensorOptions(type));
  PlainGpt plain(shape, 3);
  {  // Values at which every part matters, unlike the initial ones.
    const at::NoGradGuard no_grad;
    torch::manual_seed(9);
    for (const auto& [name, param] : by_name(*plain)) {
      const at::Tensor value = param + 0.2 * torch::randn_like(param);
      const at::Tensor rounded = value.to(type);
      param.copy_(rounded);
      by_name(*model).at(name).copy_(rounded);
    }
  }
  if (mode != nn::Recompute::none) nn::set_recompute(*model, mode);
  const at::Tensor ids = torch::randint(shape.vocab, {3, tokens}, at::kLong);
  at::Tensor targets = torch::randint(shape.vocab, {3, tokens}, at::kLong);
  targets[1].fill_(-1);
  const auto close = [&](const at::Tensor& got, const at::Tensor& wanted, const std::string& what) {
    ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
    const double scale = wanted.abs().max().item<double>() + 1e-3;
    const double error = (got.to(at::kFloat) - wanted).abs().max().item<double>();
    EXPECT_LE(error, tolerance * scale) << what;
  };
  {
    const at::NoGradGuard no_grad;
    close(model->forward(ids), plain->forward(ids), "logits");
  }
  const at::Tensor loss = model->loss(ids, targets), wanted = plain->loss(ids, targets);
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_EQ(loss.dim(), 0);
  close(loss.detach(), wanted.detach(), "loss");
  (loss / 17).backward();
  (wanted / 17).backward();
  for (const auto& [name, param] : by_name(*model)) {
    ASSERT_TRUE(param.grad().defined()) << name;
    EXPECT_EQ(param.grad().scalar_type(), type);
    close(param.grad(), by_name(*plain).at(name).grad(), name);
  }
}

TEST(Gpt, MatchesPlainGptInFp32) {
  for (const std::int64_t tokens : {1, 2, 31, 140}) compare(at::kFloat, tokens, 3e-5);
}
TEST(Gpt, MatchesPlainGptInBf16) {
  for (const std::int64_t tokens : {1, 31, 140}) compare(at::kBFloat16, tokens, 6e-2);
}
TEST(Gpt, MatchesPlainGptWithRecomputation) {
  compare(at::kFloat, 40, 3e-5, nn::Recompute::selective);
  compare(at::kFloat, 40, 3e-5, nn::Recompute::full);
  compare(at::kBFloat16, 40, 6e-2, nn::Recompute::selective);
}

TEST(Gpt, RejectsInvalidInput) {
  const auto model = make_model(small());
  EXPECT_THROW(model->forward(torch::zeros({1, 141}, at::kLong)), UsageError);
  EXPECT_THROW(model->forward(torch::zeros({3}, at::kLong)), UsageError);
  EXPECT_THROW(model->forward(torch::zeros({1, 3})), UsageError);
}

}  // namespace
}  // namespace tessera::models
