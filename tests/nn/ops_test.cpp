#include "tessera/nn/ops.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/nn/ops_attention.h"
#include "tessera/nn/recompute.h"

namespace tessera::nn {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// Returns the result of f and the gradients of all inputs, for a fixed gradient of the result, in
// fp32.
Tensors run(const Function& f, const Tensors& inputs, at::ScalarType type) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.to(type).detach().clone().requires_grad_());
  }
  const at::Tensor y = f(leaves);
  EXPECT_TRUE(y.requires_grad());
  // Small numbers that every type represents exactly.
  const at::Tensor weights =
      torch::arange(y.numel(), at::kFloat).fmod(7).sub(3).mul(0.25).reshape(y.sizes());
  y.backward(weights.to(type).to(y.scalar_type()));
  Tensors results = {y.detach().to(at::kFloat)};
  for (const at::Tensor& leaf : leaves) {
    EXPECT_TRUE(leaf.grad().defined());
    EXPECT_EQ(leaf.grad().scalar_type(), type);
    results.push_back(leaf.grad().to(at::kFloat));
  }
  return results;
}

void expect_close(const at::Tensor& got, const at::Tensor& wanted, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), wanted.sizes()) << what;
  if (got.numel() == 0) return;
  const double scale = std::max(1e-6, wanted.abs().max().item<double>());
  const double error = (got - wanted).abs().max().item<double>();
  EXPECT_LE(error, tolerance * scale) << what << " (largest value " << scale << ")";
}

// Compares `fast` in fp32 and bf16 with `oracle`, composed of ATen's operations, in double
// precision.
void check(const Function& fast, const Function& oracle, const Tensors& inputs,
           const std::string& what) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Tensors rounded;
    for (const at::Tensor& input : inputs) rounded.push_back(input.to(type).to(at::kDouble));
    const Tensors got = run(fast, inputs, type);
    const Tensors wanted = run(oracle, rounded, at::kDouble);
    for (std::size_t i = 0; i < got.size(); ++i) {
      expect_close(got[i], wanted[i], type == at::kFloat ? 5e-6 : 2.5e-2,
                   what + (i == 0 ? " result" : " gradient " + std::to_string(i)) +
                       (type == at::kFloat ? " fp32" : " bf16"));
    }
  }
}

at::Tensor at_attention(const at::Tensor& qkv, std::int64_t heads) {
  const auto parts = qkv.chunk(3, 2);
  const auto split = [&](const at::Tensor& x) {
    return x.reshape({x.size(0), x.size(1), heads, -1}).transpose(1, 2);
  };
  const at::Tensor q = split(parts[0]), k = split(parts[1]), v = split(parts[2]);
  const std::int64_t tokens = qkv.size(1);
  const at::Tensor mask = torch::ones({tokens, tokens}, at::kBool).tril();
  const at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(double(q.size(3)));
  return scores.masked_fill(mask.logical_not(), -INFINITY)
      .softmax(-1)
      .matmul(v)
      .transpose(1, 2)
      .reshape(parts[0].sizes());
}

TEST(Ops, LinearMatchesAten) {
  torch::manual_seed(1);
  for (const auto& [rows, in, out] : {std::tuple{1, 1, 1}, {6, 5, 7}, {130, 33, 65}}) {
    const Tensors inputs = {torch::randn({2, rows, in}), torch::randn({out, in}),
                            torch::randn({out})};
    check([](const Tensors& t) { return nn::linear(t[0], t[1], t[2]); },
          [](const Tensors& t) { return at::linear(t[0], t[1], t[2]); }, inputs, "linear");
    check([](const Tensors& t) { return nn::linear(t[0], t[1], {}); },
          [](const Tensors& t) { return at::linear(t[0], t[1]); }, {inputs[0], inputs[1]},
          "linear without bias");
    check([](const Tensors& t) { return nn::linear_gelu(t[0], t[1], t[2]); },
          [](const Tensors& t) { return at::gelu(at::linear(t[0], t[1], t[2]), "tanh"); }, inputs,
          "linear_gelu");
  }
}

TEST(Ops, GeluMatchesAten) {
  torch::manual_seed(2);
  for (const int n : {1, 3, 100, 3000}) {
    check([](const Tensors& t) { return nn::gelu(t[0]); },
          [](const Tensors& t) { return at::gelu(t[0], "tanh"); }, {torch::randn({3, n}) * 2},
          "gelu");
  }
  // Not contiguous.
  check([](const Tensors& t) { return nn::gelu(t[0].transpose(0, 1)); },
        [](const Tensors& t) { return at::gelu(t[0].transpose(0, 1), "tanh"); },
        {torch::randn({7, 5})}, "gelu of a transposed matrix");
}

TEST(Ops, LayerNormMatchesAten) {
  torch::manual_seed(3);
  for (const auto& [rows, cols] : {std::pair{1, 9}, {3, 17}, {200, 64}, {5, 515}}) {
    const Tensors inputs = {torch::randn({2, rows, cols}) * 2 + 1, torch::randn({cols}),
                            torch::randn({cols}), torch::randn({2, rows, cols})};
    check([](const Tensors& t) { return nn::layer_norm(t[0], t[1], t[2]); },
          [](const Tensors& t) { return at::layer_norm(t[0], {t[0].size(-1)}, t[1], t[2]); },
          {inputs[0], inputs[1], inputs[2]}, "layer_norm");
    const Function oracle = [](const Tensors& t) {
      const at::Tensor sum = t[0] + t[3];
      return at::layer_norm(sum, {t[0].size(-1)}, t[1], t[2]) * sum;
    };
    check(
        [](const Tensors& t) {
          const auto [y, sum] = add_layer_norm(t[0], t[3], t[1], t[2]);
          return y * sum;
        },
        oracle, inputs, "add_layer_norm");
  }
}

TEST(Ops, AddLayerNormWorksWithOneUnusedResult) {
  const auto leaf = [](std::initializer_list<std::int64_t> sizes) {
    return torch::randn(sizes).requires_grad_();
  };
  const at::Tensor x = leaf({4, 8}), r = leaf({4, 8}), w = leaf({8}), b = leaf({8});
  add_layer_norm(x, r, w, b).second.sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::ones({4, 8})));
  EXPECT_TRUE(r.grad().equal(torch::ones({4, 8})));
  EXPECT_FALSE(w.grad().defined());
  add_layer_norm(x, r, w, b).first.sum().backward();
  EXPECT_TRUE(b.grad().equal(torch::full({8}, 4.0f)));
}

TEST(Ops, LayerNormTakesFp32WeightsForBf16) {
  const at::Tensor x = torch::randn({6, 32}).to(at::kBFloat16).requires_grad_();
  const at::Tensor w = torch::randn({32}).requires_grad_(), b = torch::randn({32}).requires_grad_();
  const at::Tensor y = layer_norm(x, w, b);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(x.grad().scalar_type(), at::kBFloat16);
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
  expect_close(y.detach().to(at::kFloat), at::layer_norm(x.to(at::kFloat), {32}, w, b).detach(),
               1e-2, "y");
}

TEST(Ops, AttentionMatchesAten) {
  torch::manual_seed(4);
  struct Case {
    std::int64_t batch, tokens, heads, dim;
  };
  for (const Case& c : {Case{1, 1, 1, 1},
                        {2, 5, 3, 4},
                        {1, 127, 2, 8},
                        {2, 128, 1, 16},
                        {1, 129, 5, 8},
                        {3, 300, 2, 4},
                        {1, 1030, 3, 8}}) {
    check([&](const Tensors& t) { return attention(t[0], c.heads); },
          [&](const Tensors& t) { return at_attention(t[0], c.heads); },
          {torch::randn({c.batch, c.tokens, 3 * c.heads * c.dim})},
          "attention over " + std::to_string(c.tokens));
  }
  EXPECT_THROW(attention(torch::zeros({2, 3, 9}), 2), UsageError);
  EXPECT_THROW(attention(torch::zeros({3, 9}), 3), UsageError);
}

// The path for processors with fast bf16 products, on any processor.
TEST(Ops, AttentionWithGatheredHeadsMatchesHeadsInPlace) {
  torch::manual_seed(8);
  for (const std::int64_t tokens : {1, 7, 128, 200, 300}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor qkv = torch::randn({2, tokens, 3 * 12}).to(type);
      const at::Tensor dout = torch::randn({2, tokens, 12}).to(type);
      const auto there = attention_forward(qkv, 3, false),
                 gathered = attention_forward(qkv, 3, true);
      const double tolerance = type == at::kFloat ? 5e-6 : 2.5e-2;
      const auto close = [&](const at::Tensor& got, const at::Tensor& wanted, const char* what) {
        expect_close(got.to(at::kFloat), wanted.to(at::kFloat), tolerance, what);
      };
      close(gathered[0], there[0], "result");
      close(gathered[1], there[1], "lse");
      close(attention_backward(qkv, 3, dout, gathered[1], true),
            attention_backward(qkv, 3, dout, there[1], false), "gradient");
    }
  }
}

TEST(Ops, LinearCrossEntropyMatchesAten) {
  torch::manual_seed(5);
  for (const auto& [rows, width, classes] : {std::tuple{1, 1, 2}, {5, 8, 17}, {70, 32, 1000}}) {
    at::Tensor targets = torch::randint(classes, {2, rows}, at::kLong);
    if (rows > 1) targets[0][1] = -1;
    check([&](const Tensors& t) { return linear_cross_entropy(t[0], t[1], targets); },
          [&](const Tensors& t) {
            return at::cross_entropy_loss(at::linear(t[0], t[1]).view({-1, t[1].size(0)}),
                                          targets.view({-1}), {}, at::Reduction::Sum, -1);
          },
          {torch::randn({2, rows, width}), torch::randn({classes, width})}, "loss");
  }
  const at::Tensor hidden = torch::randn({2, 4}), weight = torch::randn({3, 4});
  const at::Tensor bad = torch::tensor({0, 3}, at::kLong);
  EXPECT_THROW(linear_cross_entropy(hidden, weight, bad), UsageError);
  EXPECT_THROW(linear_cross_entropy(hidden, weight, bad.narrow(0, 0, 1)), UsageError);
  const at::Tensor none = torch::full({2}, -1, at::kLong);
  EXPECT_EQ(linear_cross_entropy(hidden, weight, none).item<float>(), 0.0f);
}

TEST(Ops, LossGradientsScaleWithTheLoss) {
  torch::manual_seed(6);
  const at::Tensor hidden = torch::randn({6, 4}).requires_grad_();
  const at::Tensor weight = torch::randn({9, 4}).requires_grad_();
  const at::Tensor targets = torch::randint(9, {6}, at::kLong);
  linear_cross_entropy(hidden, weight, targets).backward();
  const at::Tensor dh = hidden.grad().clone(), dw = weight.grad().clone();
  hidden.mutable_grad().reset();
  weight.mutable_grad().reset();
  (linear_cross_entropy(hidden, weight, targets) / 6).backward();
  expect_close(hidden.grad() * 6, dh, 1e-6, "dh");
  expect_close(weight.grad() * 6, dw, 1e-6, "dw");
}

TEST(Ops, GeluTakesAStridedBias) {
  const at::Tensor x = torch::linspace(-2, 2, 24).view({4, 6});
  const at::Tensor apart = torch::linspace(-1, 1, 18).view({6, 3}).select(1, 1);
  Tensors results;
  for (const bool together : {true, false}) {
    const at::Tensor b = (together ? apart.clone() : apart).detach().requires_grad_();
    EXPECT_EQ(b.is_contiguous(), together);
    const at::Tensor y = nn::gelu(x, b);
    y.sum().backward();
    results.push_back(y.detach());
    results.push_back(b.grad());
  }
  EXPECT_TRUE(at::equal(results[0], results[2]));
  EXPECT_TRUE(at::equal(results[1], results[3]));
}

// Autograd would treat kernel results as constants: an error is better than a wrong derivative.
TEST(Ops, RejectSecondDerivatives) {
  torch::manual_seed(8);
  const at::Tensor x = torch::randn({2, 3, 12}).requires_grad_();
  const at::Tensor w = torch::ones({12}), b = torch::zeros({12});
  const at::Tensor targets = torch::zeros({2, 3}, at::kLong);
  const Dropout drops{.rate = 0.5, .seed = 1};
  const std::vector<std::pair<const char*, std::function<at::Tensor()>>> all = {
      {"gelu", [&] { return nn::gelu(x); }},
      {"layer_norm", [&] { return layer_norm(x, w, b); }},
      {"add_layer_norm", [&] { return add_layer_norm(x, x.detach(), w, b).first; }},
      {"rms_norm", [&] { return rms_norm(x, w); }},
      {"swiglu", [&] { return swiglu(x); }},
      {"attention", [&] { return attention(x, 2); }},
      {"dropout", [&] { return dropout(x, drops); }},
      {"linear_cross_entropy", [&] {
         return linear_cross_entropy(x, torch::ones({5, 12}), targets);
       }}};
  for (const auto& [what, f] : all) {
    const at::Tensor y = f().pow(3).sum();
    EXPECT_THROW(torch::autograd::grad({y}, {x}, {}, true, /*create_graph=*/true), UsageError)
        << what;
    EXPECT_NO_THROW(torch::autograd::grad({y}, {x}, {}, true)) << what;
  }
}

// All operations in one segment: same bits with and without recomputation.
TEST(Ops, AreBitwiseEqualUnderRecomputation) {
  torch::manual_seed(7);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::int64_t width = 12;
    Tensors weights;
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{width},
                                                                    {width},
                                                                    {3 * width, width},
                                                                    {3 * width},
                                                                    {width},
                                                                    {width},
                                                                    {4 * width, width},
                                                                    {4 * width},
                                                                    {width, 4 * width}}) {
      weights.push_back(torch::randn(sizes).mul_(0.3).to(type).requires_grad_());
    }
    const auto block = [&](const at::Tensor& x) {
      const auto& w = weights;
      const at::Tensor a = attention(nn::linear(nn::layer_norm(x, w[0], w[1]), w[2], w[3]), 2);
      const auto [h, s] = add_layer_norm(x, a, w[4], w[5]);
      return s + nn::linear(nn::gelu(nn::linear_gelu(h, w[6], w[7])), w[8], {});
    };
    const at::Tensor x0 = torch::randn({2, 150, width}).to(type);
    Tensors wanted;
    for (const Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
      const at::Tensor x = x0.clone().requires_grad_();
      const at::Tensor y = recompute(mode, block, x);
      (y * y).sum().backward();
      Tensors results = {y.detach(), x.grad()};
      for (at::Tensor& w : weights) {
        results.push_back(w.grad().clone());
        w.mutable_grad().reset();
      }
      if (wanted.empty()) wanted = results;
      for (std::size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(results[i].equal(wanted[i])) << name(mode) << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::nn
