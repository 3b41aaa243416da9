// Compares Llama's operations with ATen's, with autograd's gradients.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/nn/ops.h"

namespace tessera::nn {
namespace {

using Function = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

void compare(const Function& ours, const Function& wanted, std::vector<at::Tensor> inputs,
             const std::string& what, double tolerance = 1e-5) {
  std::vector<at::Tensor> a, b;
  for (const at::Tensor& input : inputs) {
    a.push_back(input.clone().requires_grad_());
    b.push_back(input.to(torch::kDouble).requires_grad_());
  }
  const at::Tensor x = ours(a), y = wanted(b);
  EXPECT_EQ(x.scalar_type(), inputs[0].scalar_type()) << what;
  const auto close = [&](const at::Tensor& got, const at::Tensor& want, const std::string& of,
                         double least = 1e-3) {
    ASSERT_EQ(got.sizes(), want.sizes()) << what << of;
    const double scale = want.abs().max().item<double>() + least;
    EXPECT_LE((got.to(torch::kDouble) - want).abs().max().item<double>(), tolerance * scale)
        << what << of;
  };
  close(x.detach(), y.detach(), " result");
  const at::Tensor dy = torch::randn_like(x);
  x.backward(dy);
  y.backward(dy.to(torch::kDouble));
  for (std::size_t i = 0; i < a.size(); ++i) {
    // A gradient may be a small difference of terms as large as dy.
    close(a[i].grad(), b[i].grad(), " gradient " + std::to_string(i),
          dy.abs().max().item<double>());
  }
}

TEST(LlamaOps, RmsNormMatchesAten) {
  for (const std::int64_t width : {1, 7, 64}) {
    const auto ours = [](const auto& in) { return rms_norm(in[0], in[1], 1e-5); };
    const auto wanted = [](const auto& in) {
      return in[0] / (in[0].square().mean(-1, true) + 1e-5).sqrt() * in[1];
    };
    compare(ours, wanted, {torch::randn({3, 5, width}), torch::randn({width})}, "rms");
    compare(ours, wanted,
            {torch::randn({3, width}).to(torch::kDouble), torch::randn({width}).to(torch::kDouble)},
            "rms fp64", 1e-12);
    compare(
        ours, wanted,
        {torch::randn({2, width}).to(torch::kBFloat16), torch::randn({width}).to(torch::kBFloat16)},
        "rms bf16", 2e-2);
  }
}

TEST(LlamaOps, SwiGluMatchesAten) {
  for (const std::int64_t width : {1, 6, 33}) {
    const auto ours = [](const auto& in) { return swiglu(in[0]); };
    const auto wanted = [](const auto& in) {
      const auto parts = in[0].chunk(2, -1);
      return parts[0] * parts[0].sigmoid() * parts[1];
    };
    compare(ours, wanted, {torch::randn({3, 4, 2 * width})}, "swiglu");
    compare(ours, wanted, {torch::randn({3, 2 * width}).to(torch::kDouble)}, "fp64", 1e-12);
    compare(ours, wanted, {torch::randn({9, 2 * width}).to(torch::kBFloat16)}, "bf16", 2e-2);
  }
  EXPECT_THROW(swiglu(torch::zeros({2, 3})), UsageError);
}

TEST(LlamaOps, RotaryRotatesPairsByPosition) {
  const std::int64_t heads = 3, dim = 8;
  const at::Tensor x = torch::randn({2, 5, heads * dim + 4});
  const at::Tensor y = rotary(x, heads, dim);
  EXPECT_TRUE(y.narrow(2, heads * dim, 4).equal(x.narrow(2, heads * dim, 4)));
  for (std::int64_t t = 0; t < 5; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < dim / 2; ++i) {
        const double angle = static_cast<double>(t) * std::pow(1e4, -2.0 * i / dim);
        const double a = x[1][t][h * dim + i].item<double>();
        const double b = x[1][t][h * dim + i + dim / 2].item<double>();
        EXPECT_NEAR(y[1][t][h * dim + i].item<double>(), a * cos(angle) - b * sin(angle), 1e-5);
        EXPECT_NEAR(y[1][t][h * dim + i + dim / 2].item<double>(), b * cos(angle) + a * sin(angle),
                    1e-5);
      }
    }
  }
  // A rotation preserves lengths, so its gradient is the inverse rotation.
  const at::Tensor in = x.clone().requires_grad_();
  rotary(in, heads, dim).backward(y);
  EXPECT_TRUE(at::allclose(in.grad(), x, 1e-4, 1e-5));
  EXPECT_THROW(rotary(x, 4, 7), UsageError);
  EXPECT_THROW(rotary(x, 4, 8), UsageError);
}

// Rotated and scaled: other elements do not change, and gradients are scaled too.
TEST(LlamaOps, RotaryMultipliesByItsGain) {
  const std::int64_t heads = 2, dim = 8, wide = heads * dim;
  const std::vector<double> rates = {1, 0.5, 0.25, 0.125};
  const at::Tensor x = torch::randn({2, 5, wide + 4});
  const at::Tensor y = rotary(x, heads, dim, rates, 1.5), plain = rotary(x, heads, dim, rates);
  EXPECT_TRUE(at::allclose(y.narrow(2, 0, wide), 1.5 * plain.narrow(2, 0, wide), 1e-5, 1e-6));
  EXPECT_TRUE(y.narrow(2, wide, 4).equal(x.narrow(2, wide, 4)));
  const at::Tensor in = x.clone().requires_grad_();
  rotary(in, heads, dim, rates, 1.5).backward(y);
  const at::Tensor back = in.grad();
  EXPECT_TRUE(at::allclose(back.narrow(2, 0, wide), 2.25 * x.narrow(2, 0, wide), 1e-4, 1e-5));
  EXPECT_TRUE(back.narrow(2, wide, 4).equal(x.narrow(2, wide, 4)));
}

TEST(LlamaOps, GroupedAttentionMatchesTheFormula) {
  for (const std::int64_t kv_heads : {1, 2, 6}) {
    const std::int64_t heads = 6, dim = 4, tokens = 9;
    const auto ours = [&](const auto& in) { return attention(in[0], heads, kv_heads); };
    const auto wanted = [&](const auto& in) {
      std::vector<at::Tensor> outs;
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t kv = h * kv_heads / heads;
        const at::Tensor q = in[0].narrow(2, h * dim, dim);
        const at::Tensor k = in[0].narrow(2, (heads + kv) * dim, dim);
        const at::Tensor v = in[0].narrow(2, (heads + kv_heads + kv) * dim, dim);
        const at::Tensor mask = torch::ones({tokens, tokens}, torch::kBool).triu(1);
        outs.push_back((q.matmul(k.transpose(1, 2)) / std::sqrt(double(dim)))
                           .masked_fill(mask, -1e30)
                           .softmax(-1)
                           .matmul(v));
      }
      return at::cat(outs, 2);
    };
    compare(ours, wanted, {torch::randn({2, tokens, (heads + 2 * kv_heads) * dim})}, "attention");
  }
  EXPECT_THROW(attention(torch::zeros({1, 2, 20}), 6, 4), UsageError);
}

}  // namespace
}  // namespace tessera::nn
