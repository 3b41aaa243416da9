// Compares attention with a window or documents, and dropout, with elementwise references.

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <random>

#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/text.h"
#include "tessera/kernels/dropout.h"
#include "tessera/memory/allocator.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_attention.h"

namespace tessera::nn {
namespace {

// Documents of random lengths, some with one token.
at::Tensor random_starts(std::int64_t rows, std::int64_t tokens, std::uint64_t seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  const at::Tensor starts = torch::empty({rows, tokens}, torch::kInt);
  for (std::int64_t b = 0; b < rows; ++b) {
    std::int32_t begin = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (random() % 60 == 0 || (t > 0 && t < 4)) begin = static_cast<std::int32_t>(t);
      starts[b][t] = begin;
    }
  }
  return starts;
}

// Returns 0 or 1 / (1 - rate) for each probability, [B, H, T, T].
at::Tensor mask_of(const AttentionOptions& how, std::int64_t batch, std::int64_t heads,
                   std::int64_t tokens) {
  at::Tensor mask = torch::ones({batch, heads, tokens, tokens});
  if (how.dropout.rate == 0) return mask.to(torch::kDouble);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        const kernels::Dropout row = {
            .seed = how.dropout.seed,
            .stream = kernels::stream_of_sample(
                how.dropout.stream, how.dropout.first_sample + static_cast<std::uint64_t>(b)),
            .rate = how.dropout.rate,
            .width = static_cast<std::size_t>(tokens)};
        const auto number = static_cast<std::uint64_t>((how.first_head + h) * tokens + t);
        kernels::reference::drop(row, kernels::Type::f32, number, 0,
                                 mask[b][h][t].mutable_data_ptr<float>(),
                                 static_cast<std::size_t>(tokens));
      }
    }
  }
  return mask.to(torch::kDouble);
}

at::Tensor slow(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                const AttentionOptions& how) {
  const std::int64_t batch = qkv.size(0), tokens = qkv.size(1);
  const std::int64_t dim = qkv.size(2) / (heads + 2 * kv_heads);
  const at::Tensor all = qkv.view({batch, tokens, heads + 2 * kv_heads, dim}).transpose(1, 2);
  const auto spread = [&](std::int64_t from) {
    return all.narrow(1, from, kv_heads).repeat_interleave(heads / kv_heads, 1);
  };
  at::Tensor scores = at::matmul(all.narrow(1, 0, heads), spread(heads).transpose(2, 3)) /
                      std::sqrt(static_cast<double>(dim));
  const at::Tensor unseen = torch::ones({batch, 1, tokens, tokens}, torch::kBool);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      std::int64_t from = how.window > 0 ? std::max<std::int64_t>(0, t - how.window + 1) : 0;
      if (how.document_starts.defined()) {
        from = std::max<std::int64_t>(from, how.document_starts[b][t].item<int>());
      }
      unseen[b][0][t].narrow(0, from, t + 1 - from).fill_(false);
    }
  }
  scores = scores.masked_fill(unseen, -1e300);
  const at::Tensor p = scores.softmax(-1) * mask_of(how, batch, heads, tokens);
  return at::matmul(p, spread(heads + kv_heads))
      .transpose(1, 2)
      .reshape({batch, tokens, heads * dim});
}

void near(const at::Tensor& got, const at::Tensor& want, double tolerance,
          const std::string& what) {
  const double most = want.abs().max().item<double>() + 1e-6;
  EXPECT_LE((got.to(torch::kDouble) - want).abs().max().item<double>() / most, tolerance) << what;
}

TEST(MaskedAttention, MatchesTheReference) {
  torch::manual_seed(1);
  struct Case {
    std::int64_t batch, tokens, heads, kv_heads, dim, window;
    bool documents;
    double rate;
  };
  const std::vector<Case> cases = {
      {2, 37, 4, 4, 8, 5, false, 0},    {1, 300, 2, 2, 16, 100, false, 0},
      {2, 300, 4, 2, 8, 0, true, 0},    {2, 261, 2, 1, 8, 40, true, 0},
      {1, 1, 2, 2, 8, 1, true, 0},      {2, 130, 2, 2, 8, 1, false, 0},
      {3, 50, 4, 2, 8, 0, false, 0.3},  {2, 150, 2, 2, 8, 60, true, 0.5},
      {2, 40, 2, 2, 8, 4000, false, 0},
  };
  std::uint64_t seed = 0;
  for (const Case& of : cases) {
    AttentionOptions how;
    how.window = of.window;
    if (of.documents) how.document_starts = random_starts(of.batch, of.tokens, ++seed);
    how.dropout = {of.rate, 11, 12345, 7};
    how.first_head = 3;
    const at::Tensor given =
        torch::randn({of.batch, of.tokens, (of.heads + 2 * of.kv_heads) * of.dim});
    for (const bool half : {false, true}) {
      for (const bool gather : {false, true}) {
        if (gather && of.heads != of.kv_heads) continue;
        const auto type = half ? torch::kBFloat16 : torch::kFloat;
        const at::Tensor exact = given.to(type).to(torch::kDouble).requires_grad_();
        const at::Tensor wanted = slow(exact, of.heads, of.kv_heads, how);
        const at::Tensor dout = torch::randn_like(wanted).to(type);
        wanted.backward(dout.to(torch::kDouble));
        const std::string what =
            str(of.tokens, " tokens, window ", of.window, of.documents ? ", documents" : "",
                ", dropout ", of.rate, half ? ", bf16" : "", gather ? ", gathered" : "");
        const double tolerance = half ? 0.03 : 2e-5;
        at::Tensor out, grad;
        if (gather) {
          const at::Tensor x = given.to(type).contiguous();
          const auto kept = attention_forward(x, of.heads, true, &how);
          out = kept[0];
          grad = attention_backward(x, of.heads, dout, kept[1], true, &how);
        } else {
          const at::Tensor x = given.to(type).clone().requires_grad_();
          out = attention(x, of.heads, of.kv_heads, how);
          out.backward(dout);
          grad = x.grad();
        }
        near(out, wanted, tolerance, what);
        near(grad, exact.grad(), tolerance, what + ", gradient");
      }
    }
  }
}

// ATen's operations, used for other devices and types, apply the same mask and dropout.
TEST(MaskedAttention, OtherTypesApplyTheSameMask) {
  AttentionOptions how;
  how.window = 9;
  how.document_starts = random_starts(2, 45, 3);
  const at::Tensor x = torch::randn({2, 45, 4 * 8}, torch::kDouble).requires_grad_();
  const at::Tensor y = x.detach().clone().requires_grad_();
  const at::Tensor out = attention(x, 2, 1, how), wanted = slow(y, 2, 1, how);
  out.sum().backward();
  wanted.sum().backward();
  near(out, wanted, 1e-12, "result");
  near(x.grad(), y.grad(), 1e-12, "gradient");
}

TEST(MaskedAttention, RejectsInvalidMasks) {
  const at::Tensor x = torch::zeros({2, 8, 24});
  AttentionOptions how;
  how.document_starts = torch::zeros({2, 7}, torch::kInt);
  EXPECT_THROW(attention(x, 1, 1, how), UsageError);
  how.document_starts = torch::zeros({2, 8}, torch::kLong);
  EXPECT_THROW(attention(x, 1, 1, how), UsageError);
  how = {};
  how.window = -1;
  EXPECT_THROW(attention(x, 1, 1, how), UsageError);
  how = {};
  how.dropout.rate = 1;
  EXPECT_THROW(attention(x, 1, 1, how), UsageError);
  Pass pass;
  const at::Tensor starts = torch::zeros({1, 4}, torch::kInt);
  starts[0][2] = 1;  // token 1 still has start 0
  EXPECT_THROW(with_documents(pass, starts, torch::kCPU), UsageError);
  starts[0][1] = 1;
  starts[0][3] = 1;
  with_documents(pass, starts, torch::kCPU);
  EXPECT_EQ(pass.longest_document, 3);
  EXPECT_TRUE(at::equal(pass.document_bounds, torch::tensor({0, 1, 4}, torch::kInt)));
}

// 8,192 tokens: peak memory grows with the sequence, not with its square.
TEST(MaskedAttention, LongSequencesNeedNoQuadraticMemory) {
  memory::install();
  std::vector<double> most;
  for (const std::int64_t tokens : {2048, 8192}) {
    for (const std::int64_t window : {std::int64_t{0}, std::int64_t{256}}) {
      const at::Tensor x = torch::randn({1, tokens, 3 * 8}).requires_grad_();
      AttentionOptions how;
      how.window = window;
      const auto ledger = std::make_shared<memory::Ledger>();
      const memory::OwnerScope owner(ledger);
      attention(x, 1, 1, how).sum().backward();
      most.push_back(static_cast<double>(ledger->counts().total.peak));
      EXPECT_LT(most.back(), static_cast<double>(tokens * 2 * 128 * 4 + tokens * 400)) << tokens;
    }
  }
  EXPECT_LT(most[2] / most[0], 4.5);
  EXPECT_LT(most[3], most[2] / 4);  // with a window, not even with the sequence
}

TEST(Dropout, DropsAtTheGivenRateAndKeepsTheMean) {
  const at::Tensor x = torch::ones({3, 50, 70}).requires_grad_();
  const Dropout how{0.25, 5, 9, 100};
  const at::Tensor y = dropout(x, how);
  EXPECT_NEAR(y.mean().item<double>(), 1, 0.02);
  EXPECT_NEAR((y == 0).to(torch::kFloat).mean().item<double>(), 0.25, 0.015);
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), y.detach()));  // same mask
  // Any part on its own: other micro-batches, other parts of the sequence.
  Dropout later = how;
  later.first_sample = 101;
  EXPECT_TRUE(at::equal(dropout(x.narrow(0, 1, 2), later), y.narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(dropout(x.narrow(1, 20, 30), how, {{0, 20, 30}}), y.narrow(1, 20, 30)));
  for (const std::int64_t first : {0, 1, 6, 37, 69}) {
    const at::Tensor part = dropped_columns(x.narrow(2, first, 70 - first), how, first, 70);
    EXPECT_TRUE(at::equal(part, y.narrow(2, first, 70 - first))) << first;
  }
  EXPECT_THROW(dropped_columns(x, how, 1, 70), UsageError);
  // Different seeds, layers or samples give different masks.
  for (const Dropout& other : {Dropout{0.25, 6, 9, 100}, Dropout{0.25, 5, 10, 100}, later}) {
    EXPECT_FALSE(at::equal(dropout(x, other), y));
  }
  EXPECT_TRUE(dropout(x, {}).is_same(x));
  EXPECT_THROW(dropout(x, {1.0, 0, 0, 0}), UsageError);
  EXPECT_THROW(dropout(x.to(torch::kDouble), how), UsageError);
}

TEST(Dropout, KernelMatchesTheReference) {
  std::mt19937 random(4);
  for (int i = 0; i < 200; ++i) {
    const kernels::Dropout how = {.seed = random(),
                                  .stream = random(),
                                  .rate = 0.01 * (random() % 99),
                                  .width = 1 + random() % 300};
    const std::size_t first = random() % how.width, n = random() % (how.width - first + 1);
    const std::uint64_t row = random();
    const bool half = i % 2 == 1;
    const at::Tensor a = torch::randn({static_cast<std::int64_t>(n) + 1})
                             .to(half ? torch::kBFloat16 : torch::kFloat),
                     b = a.clone();
    const auto type = half ? kernels::Type::bf16 : kernels::Type::f32;
    kernels::drop(how, type, row, first, a.mutable_data_ptr(), n);
    kernels::reference::drop(how, type, row, first, b.mutable_data_ptr(), n);
    ASSERT_TRUE(at::allclose(a, b, half ? 8e-3 : 1e-6, 0)) << i;
  }
}

TEST(Rotary, RatesMatchThePublishedModels) {
  // From the formulas in double precision; llama3 with the numbers of Llama 3.1.
  const RotaryScaling none, linear{RotaryScaling::Kind::linear, 4};
  const RotaryScaling llama3{RotaryScaling::Kind::llama3, 8, 1, 4, 8192};
  const std::int64_t width = 128;
  const auto plain = rotary_rates(width, 5e5, none), divided = rotary_rates(width, 5e5, linear),
             stretched = rotary_rates(width, 5e5, llama3);
  int between = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double rate = std::pow(5e5, -2.0 * static_cast<double>(i) / width);
    EXPECT_NEAR(plain[i] / rate, 1, 2e-7);
    EXPECT_NEAR(divided[i] / rate, 0.25, 1e-7);
    const double wave = 2 * M_PI / rate, smooth = (8192 / wave - 1) / 3;
    double wanted = rate;
    if (wave > 8192) wanted = rate / 8;
    if (wave >= 2048 && wave <= 8192) wanted = (1 - smooth) * rate / 8 + smooth * rate, ++between;
    EXPECT_NEAR(stretched[i] / wanted, 1, 2e-6) << i;
    EXPECT_EQ(stretched[i], static_cast<float>(stretched[i]));
  }
  EXPECT_GT(between, 2);
}

}  // namespace
}  // namespace tessera::nn
