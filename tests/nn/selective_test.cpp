// Tests of selective recomputation: products return all their results of the first run, and only if
// the recomputation repeats the first run.

#include <ATen/autocast_mode.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/library.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cmath>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/nn/recompute.h"

namespace tessera::nn {
namespace {

constexpr std::int64_t kWidth = 64, kHeads = 2, kTokens = 24;

// GPT block with torch's attention.
struct GptBlock : torch::nn::Module {
  GptBlock()
      : norm1(register_module("norm1", torch::nn::LayerNorm(options()))),
        norm2(register_module("norm2", torch::nn::LayerNorm(options()))),
        qkv(register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth))),
        proj(register_module("proj", torch::nn::Linear(kWidth, kWidth))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  static torch::nn::LayerNormOptions options() { return torch::nn::LayerNormOptions({kWidth}); }

  at::Tensor forward(at::Tensor x) {  // [B, T, C]
    const at::Tensor heads = qkv->forward(norm1->forward(x))
                                 .unflatten(2, {3, kHeads, kWidth / kHeads})
                                 .permute({2, 0, 3, 1, 4});  // [3, B, H, T, C / H]
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, true);
    x = x + proj->forward(mixed.transpose(1, 2).flatten(2));
    return x + down->forward(at::gelu(up->forward(norm2->forward(x))));
  }

  torch::nn::LayerNorm norm1, norm2;
  torch::nn::Linear qkv, proj, up, down;
};

// Fills freed memory, to detect reads before writes.
void poison(c10::Device device) {
  std::vector<at::Tensor> blocks;
  for (std::int64_t bytes = 512; bytes <= (8 << 20); bytes *= 2) {
    for (int i = 0; i < 4; ++i) {
      blocks.push_back(at::full({bytes / 4}, std::numeric_limits<float>::quiet_NaN(),
                                at::device(device).dtype(at::kFloat)));
    }
  }
}

std::vector<at::Tensor> gradients(Recompute mode, at::ScalarType type, c10::Device device) {
  torch::manual_seed(5);
  std::vector<std::shared_ptr<GptBlock>> blocks;
  for (int i = 0; i < 2; ++i) {
    blocks.push_back(std::make_shared<GptBlock>());
    blocks.back()->to(device, type);
  }
  const at::Tensor x =
      torch::randn({3, kTokens, kWidth}).to(device, type).detach().requires_grad_();
  poison(device);
  at::Tensor y = x;
  for (const auto& block : blocks) {
    y = recompute(
        mode, [block](at::Tensor in) { return block->forward(in); }, y);
  }
  poison(device);
  y.to(at::kFloat).square().sum().backward();
  std::vector<at::Tensor> result = {y.detach(), x.grad()};
  for (const auto& block : blocks) {
    for (const at::Tensor& p : block->parameters()) result.push_back(p.grad());
  }
  return result;
}

void compare_modes(c10::Device device) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const std::vector<at::Tensor> want = gradients(Recompute::none, type, device);
    for (const at::Tensor& tensor : want) {
      ASSERT_TRUE(at::isfinite(tensor).all().item<bool>());
      EXPECT_GT(tensor.abs().max().item<float>(), 0);
    }
    for (const auto mode : {Recompute::selective, Recompute::full}) {
      const std::vector<at::Tensor> got = gradients(mode, type, device);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i])) << name(mode) << " " << type << " " << i;
      }
    }
  }
}

TEST(Selective, GptBlockGradientsMatchOtherModes) { compare_modes(c10::kCPU); }

TEST(Selective, GptBlockGradientsMatchOtherModesOnCuda) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  compare_modes(c10::Device(c10::kCUDA, 0));
}

// Records the calls of an attention operator without a CPU kernel, and of its backward. The
// operator returns all kinds of values. out = q · (1 + k + v), elementwise.
struct Seen {
  int forwards = 0;
  std::int64_t max_q = 0, max_k = 0;
  bool lse = false, cum_seq_q = true;
} seen;

using Attended = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
                            c10::SymInt, at::Tensor, at::Tensor, at::Tensor>;
Attended attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                const std::optional<at::Tensor>&, bool compute_log_sumexp, double, bool, bool,
                std::optional<double>) {
  ++seen.forwards;
  const at::Tensor seed = at::zeros({}, at::kLong);
  return {
      q * (1 + k + v), compute_log_sumexp ? q.sum(-1) : at::Tensor(), {}, {}, 7, 9, seed, seed, {}};
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> attend_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor&, const at::Tensor& lse, const at::Tensor&, const at::Tensor&,
    const at::Tensor&, const at::Tensor& cum_seq_q, const at::Tensor&, c10::SymInt max_q,
    c10::SymInt max_k, double, bool, std::optional<double>) {
  seen.max_q = max_q.expect_int();
  seen.max_k = max_k.expect_int();
  seen.lse = lse.defined() && at::equal(lse, q.sum(-1));
  seen.cum_seq_q = cum_seq_q.defined();
  return {grad * (1 + k + v), grad * q, grad * q};
}
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("_scaled_dot_product_cudnn_attention", attend);
  m.impl("_scaled_dot_product_cudnn_attention_backward", attend_backward);
}

TEST(Selective, KeepsAllResultsOfAProduct) {
  std::vector<at::Tensor> grads;
  for (const auto mode : {Recompute::none, Recompute::selective}) {
    const at::Tensor x = torch::linspace(-1, 1, 24).view({1, 2, 3, 4}).requires_grad_();
    seen = {};
    // As at::scaled_dot_product_attention calls it.
    const auto f = [](at::Tensor in) {
      const at::Tensor q = in * 2;
      return std::get<0>(at::_scaled_dot_product_cudnn_attention(
          q, in, in, {}, q.requires_grad() && at::GradMode::is_enabled()));
    };
    recompute(mode, f, x).sum().backward();
    grads.push_back(x.grad());
    EXPECT_EQ(seen.forwards, 1) << name(mode);
    EXPECT_EQ(seen.max_q, 7) << name(mode);
    EXPECT_EQ(seen.max_k, 9) << name(mode);
    EXPECT_TRUE(seen.lse) << name(mode);
    EXPECT_FALSE(seen.cum_seq_q) << name(mode);
  }
  EXPECT_TRUE(at::equal(grads[0], grads[1]));
}

std::string refusal(const std::function<at::Tensor(at::Tensor)>& f) {
  const at::Tensor x = torch::ones({2, 3}).requires_grad_();
  const at::Tensor y = recompute(Recompute::selective, f, x);
  try {
    y.sum().backward();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Selective, RejectsASegmentThatDoesNotRepeatItself) {
  const at::Tensor w = torch::ones({3, 3}), wide = torch::ones({3, 5}), b = torch::ones({3});
  const std::string other_operator = refusal([&](at::Tensor in) {
    return at::GradMode::is_enabled() ? at::addmm(b, in, w) : at::mm(in, w);
  });
  EXPECT_NE(other_operator.find("calls aten::addmm(Float [3], Float [2, 3], Float [3, 3])"),
            std::string::npos)
      << other_operator;
  EXPECT_NE(other_operator.find("first run called aten::mm(Float [2, 3], Float [3, 3])"),
            std::string::npos)
      << other_operator;
  EXPECT_NE(other_operator.find("GradMode"), std::string::npos) << other_operator;

  const std::string other_shape = refusal(
      [&](at::Tensor in) { return at::mm(in, at::GradMode::is_enabled() ? wide : w).sum(); });
  EXPECT_NE(other_shape.find("Float [3, 5]"), std::string::npos) << other_shape;
  EXPECT_NE(other_shape.find("Float [3, 3]"), std::string::npos) << other_shape;

  const std::string other_type = refusal([&](at::Tensor in) {
    const auto type = at::GradMode::is_enabled() ? at::kDouble : at::kFloat;
    return at::mm(in.to(type), w.to(type)).to(at::kFloat);
  });
  EXPECT_NE(other_type.find("Double"), std::string::npos) << other_type;

  const std::string more = refusal([&](at::Tensor in) {
    const at::Tensor once = at::mm(in, w);
    return at::GradMode::is_enabled() ? at::mm(once, w) : once;
  });
  EXPECT_NE(more.find("first run made only 1"), std::string::npos) << more;

  const std::string fewer = refusal([&](at::Tensor in) {
    const at::Tensor once = at::mm(in, w);
    return at::GradMode::is_enabled() ? once : at::mm(once, w);
  });
  EXPECT_NE(fewer.find("ended after 1 of 2"), std::string::npos) << fewer;

  const std::string own_kernel = refusal([&](at::Tensor in) {
    return in * keep_in_selective(at::GradMode::is_enabled() ? "theirs" : "ours", {in},
                                  [&] { return std::vector<at::Tensor>{in.detach() * 2}; })[0];
  });
  EXPECT_NE(own_kernel.find("theirs(Float [2, 3])"), std::string::npos) << own_kernel;
}

TEST(Selective, SegmentsMayBeNested) {
  const at::Tensor w = torch::randn({3, 3});
  std::vector<at::Tensor> grads;
  for (const auto outer : {Recompute::none, Recompute::selective, Recompute::full}) {
    for (const auto inner : {Recompute::none, Recompute::selective, Recompute::full}) {
      const at::Tensor x = torch::linspace(-1, 1, 6).view({2, 3}).requires_grad_();
      recompute(
          outer,
          [&](at::Tensor in) {
            const at::Tensor middle = recompute(
                inner, [&](at::Tensor y) { return at::mm(y.tanh(), w).tanh(); }, in);
            return at::mm(middle, w).tanh();
          },
          x)
          .sum()
          .backward();
      grads.push_back(x.grad());
      EXPECT_TRUE(at::equal(grads.front(), grads.back())) << name(outer) << " " << name(inner);
    }
  }
}

// A mode above autograd handles a product first: the cast product is kept.
TEST(Selective, WorksUnderAutocast) {
  const at::Tensor w = torch::randn({3, 3});
  std::vector<at::Tensor> grads;
  for (const auto mode : {Recompute::none, Recompute::selective}) {
    const at::Tensor x = torch::linspace(-1, 1, 6).view({2, 3}).requires_grad_();
    recompute(
        mode,
        [&](at::Tensor in) {
          const bool before = at::autocast::is_autocast_enabled(at::kCPU);
          at::autocast::set_autocast_enabled(at::kCPU, true);
          const at::Tensor y = at::linear(at::linear(in, w).tanh(), w).to(at::kFloat);
          at::autocast::clear_cache();
          at::autocast::set_autocast_enabled(at::kCPU, before);
          return y;
        },
        x)
        .sum()
        .backward();
    grads.push_back(x.grad());
  }
  EXPECT_TRUE(at::equal(grads[0], grads[1]));
}

// The autocast scope may end before backward or not; torch caches casts of parameters in it.
TEST(Selective, CastsAlikeInBothRuns) {
  const at::Tensor start = torch::linspace(-0.5, 0.7, 9).view({3, 3});
  for (const bool ends : {true, false}) {
    std::vector<at::Tensor> inputs, weights;
    for (const auto mode : {Recompute::none, Recompute::selective, Recompute::full}) {
      const at::Tensor w = start.clone().requires_grad_();
      const at::Tensor x = torch::linspace(-1, 1, 6).view({2, 3}).requires_grad_();
      at::autocast::set_autocast_enabled(at::kCPU, true);
      const at::Tensor y = recompute(
          mode,
          [&](at::Tensor in) {
            return at::linear(at::linear(in, w).tanh(), w).to(at::kFloat).tanh();
          },
          x);
      if (ends) at::autocast::set_autocast_enabled(at::kCPU, false);
      if (ends) at::autocast::clear_cache();
      y.sum().backward();
      EXPECT_EQ(at::autocast::is_autocast_enabled(at::kCPU), !ends) << name(mode);
      EXPECT_TRUE(at::autocast::is_autocast_cache_enabled()) << name(mode);
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      ASSERT_TRUE(w.grad().defined()) << name(mode) << (ends ? ", outside" : ", inside");
      inputs.push_back(x.grad());
      weights.push_back(w.grad());
    }
    for (std::size_t i = 1; i < inputs.size(); ++i) {
      EXPECT_TRUE(at::equal(inputs[i], inputs[0])) << i << (ends ? ", outside" : ", inside");
      // Each use is cast separately, and their gradients are added in fp32.
      EXPECT_TRUE(at::allclose(weights[i], weights[0], 2e-2, 2e-2)) << i;
    }
  }
}

}  // namespace
}  // namespace tessera::nn
