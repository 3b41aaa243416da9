// Llama compared with the same network of ATen's operations and autograd.

#include <gtest/gtest.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/models/language_model.h"

namespace tessera::models {
namespace {

using Named = std::map<std::string, at::Tensor>;

ModelShape small(std::int64_t kv_heads, bool tied) {
  ModelShape shape;
  shape.layers = 2;
  shape.hidden = 24;
  shape.heads = 4;
  shape.kv_heads = kv_heads;
  shape.ffn = 20;
  shape.vocab = 30;
  shape.swiglu = true;
  shape.biases = false;
  shape.tied = tied;
  return shape;
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  return x / (x.square().mean(-1, true) + eps).sqrt() * w;
}

at::Tensor turn(const at::Tensor& x, double base) {  // [B, T, H, d]
  const std::int64_t tokens = x.size(1), half = x.size(3) / 2;
  const auto as_double = torch::TensorOptions(torch::kDouble);
  const at::Tensor rate =
      torch::pow(base, torch::arange(half, as_double) * (-1.0 / static_cast<double>(half)));
  const at::Tensor angle =
      (torch::arange(tokens, as_double).view({tokens, 1}) * rate).view({tokens, 1, half});
  const at::Tensor a = x.narrow(3, 0, half), b = x.narrow(3, half, half);
  return at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
}

at::Tensor reference_loss(const ModelShape& s, Named& p, const at::Tensor& ids,
                          const at::Tensor& targets) {
  const std::int64_t batch = ids.size(0), tokens = ids.size(1), d = s.head_dim();
  at::Tensor x = torch::embedding(p["tok.weight"], ids);
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string at = "blocks." + std::to_string(layer) + ".";
    const at::Tensor qkv =
        torch::linear(norm(x, p[at + "norm1.weight"], s.norm_eps), p[at + "qkv.weight"]);
    const auto heads = [&](std::int64_t begin, std::int64_t n) {
      return qkv.narrow(2, begin * d, n * d).view({batch, tokens, n, d});
    };
    const std::int64_t times = s.heads / s.kv_heads;
    const at::Tensor q = turn(heads(0, s.heads), s.rotary_base);
    const at::Tensor k =
        turn(heads(s.heads, s.kv_heads), s.rotary_base).repeat_interleave(times, 2);
    const at::Tensor v = heads(s.heads + s.kv_heads, s.kv_heads).repeat_interleave(times, 2);
    const at::Tensor scores = torch::einsum("bthd,bshd->bhts", {q, k}) / std::sqrt(double(d));
    const at::Tensor mask = torch::ones({tokens, tokens}, torch::kBool).triu(1);
    const at::Tensor mixed =
        torch::einsum("bhts,bshd->bthd", {scores.masked_fill(mask, -1e30).softmax(-1), v});
    x = x + torch::linear(mixed.reshape(x.sizes()), p[at + "proj.weight"]);
    const auto up = torch::linear(norm(x, p[at + "norm2.weight"], s.norm_eps), p[at + "fc.weight"])
                        .chunk(2, -1);
    x = x + torch::linear(torch::silu(up[0]) * up[1], p[at + "proj2.weight"]);
  }
  const at::Tensor logits = torch::linear(norm(x, p["norm.weight"], s.norm_eps),
                                          p[s.tied ? "tok.weight" : "head.weight"]);
  return torch::cross_entropy_loss(logits.view({-1, s.vocab}), targets.view({-1}), {},
                                   at::Reduction::Sum, -1);
}

TEST(Llama, MatchesTheReference) {
  for (const std::int64_t kv_heads : {1, 2, 4}) {
    for (const at::ScalarType type : {torch::kFloat, torch::kBFloat16}) {
      for (const std::int64_t tokens : {1, 17}) {
        ModelShape shape = small(kv_heads, kv_heads == 2);
        if (kv_heads == 4) shape.rotary_base = 50;
        if (kv_heads == 2) shape.norm_eps = 0.1;
        const auto model = make_model(shape, {}, 3, at::TensorOptions(type));
        Named wide;
        {
          const at::NoGradGuard no_grad;
          torch::manual_seed(4);
          for (auto& item : model->named_parameters()) {
            item.value().add_(0.2 * torch::randn_like(item.value()));
            wide[item.key()] = item.value().detach().to(torch::kDouble).requires_grad_();
          }
        }
        const at::Tensor ids = torch::randint(shape.vocab, {3, tokens}, torch::kLong);
        at::Tensor targets = torch::randint(shape.vocab, {3, tokens}, torch::kLong);
        targets[1].fill_(-1);
        const at::Tensor loss = model->loss(ids, targets);
        const at::Tensor wanted = reference_loss(shape, wide, ids, targets);
        const double tolerance = type == torch::kFloat ? 3e-5 : 1e-1;
        EXPECT_NEAR(loss.item<double>() / wanted.item<double>(), 1, tolerance);
        loss.backward();
        wanted.backward();
        for (const auto& item : model->named_parameters()) {
          const at::Tensor want = wide.at(item.key()).grad();
          ASSERT_TRUE(item.value().grad().defined()) << item.key();
          const double error =
              (item.value().grad().to(torch::kDouble) - want).abs().max().item<double>();
          EXPECT_LE(error, tolerance * (want.abs().max().item<double>() + 1e-3)) << item.key();
        }
      }
    }
  }
}

TEST(Llama, RejectsHeadsOfOddWidth) {
  auto shape = small(2, false);
  shape.hidden = 12;
  EXPECT_THROW(make_model(shape), UsageError);
}

}  // namespace
}  // namespace tessera::models
