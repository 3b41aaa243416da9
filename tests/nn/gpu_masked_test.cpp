// Compares windows, documents and dropout on a GPU with the CPU. Skipped without a GPU.

#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>

#include "tessera/core/text.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_attention.h"
#include "tests/models/families.h"

namespace tessera::nn {
namespace {

const c10::Device kMaskedGpu(c10::kCUDA, 0);

class CudaMasked : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
    torch::manual_seed(11);
  }
};

AttentionOptions options_on(const AttentionOptions& how, const Pass& pass) {
  AttentionOptions there = how;
  there.document_starts = pass.document_starts;
  there.document_bounds = pass.document_bounds;
  there.longest_document = pass.longest_document;
  return there;
}

TEST_F(CudaMasked, AttentionMatchesTheCpu) {
  struct Case {
    std::int64_t batch, tokens, heads, kv_heads, dim, window;
    bool documents;
    double rate;
  };
  const std::vector<Case> cases = {
      {2, 130, 4, 2, 64, 40, false, 0}, {2, 200, 2, 2, 64, 0, true, 0},
      {3, 257, 4, 1, 128, 50, true, 0}, {2, 64, 2, 2, 64, 0, false, 0.2},
      {2, 90, 4, 2, 32, 30, true, 0.3}, {1, 40, 2, 2, 12, 7, true, 0}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Case& of : cases) {
      AttentionOptions how;
      how.window = of.window;
      how.dropout = {of.rate, 3, 77, 5};
      how.first_head = 1;
      Pass here, there;
      if (of.documents) {
        const at::Tensor starts = models::test::packed_starts(of.batch, of.tokens);
        with_documents(here, starts, at::kCPU);
        with_documents(there, starts, kMaskedGpu);
      }
      const at::Tensor given =
          at::randn({of.batch, of.tokens, (of.heads + 2 * of.kv_heads) * of.dim}).to(type);
      const at::Tensor dout = at::randn({of.batch, of.tokens, of.heads * of.dim}).to(type);
      const at::Tensor x = given.to(at::kFloat).clone().requires_grad_();
      const at::Tensor y = given.to(kMaskedGpu).requires_grad_();
      const at::Tensor wanted = attention(x, of.heads, of.kv_heads, options_on(how, here));
      wanted.backward(dout.to(at::kFloat));
      const AttentionOptions options = options_on(how, there);
      const AttentionChoice choice = attention_kernel(y, of.heads, of.kv_heads, options);
      std::printf("%s window %ld%s dropout %g: %s, because %s\n", c10::toString(type),
                  static_cast<long>(of.window), of.documents ? " documents" : "", of.rate,
                  name(choice.kernel), choice.why);
      const at::Tensor got = attention(y, of.heads, of.kv_heads, options);
      got.backward(dout.to(kMaskedGpu));
      const double limit = type == at::kFloat ? 2e-4 : type == at::kHalf ? 6e-3 : 3e-2;
      const auto near = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
        EXPECT_LE((a.to(at::kCPU, at::kFloat) - b).abs().max().item<double>(),
                  limit * b.abs().max().item<double>())
            << what << " " << c10::toString(type) << " window " << of.window << " documents "
            << of.documents << " dropout " << of.rate;
      };
      near(got.detach(), wanted.detach(), "result");
      near(y.grad(), x.grad(), "gradient");
    }
  }
}

TEST_F(CudaMasked, DropoutMatchesTheCpu) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t cols : {1, 7, 64, 1030}) {
      const at::Tensor x = at::randn({3, 33, cols}).to(type);
      const Dropout how{0.37, 1234567, 99, 1000};
      EXPECT_TRUE(at::equal(dropout(x, how, {{0, 8, x.size(1)}}),
                            dropout(x.to(kMaskedGpu), how, {{0, 8, x.size(1)}}).cpu()))
          << cols;
      for (const std::int64_t first : {0, 3, 5, 8}) {
        const at::Tensor there = dropped_columns(x.to(kMaskedGpu), how, first, first + cols + 2);
        EXPECT_TRUE(at::equal(dropped_columns(x, how, first, first + cols + 2), there.cpu()))
            << cols << " from " << first;
      }
    }
  }
}

TEST_F(CudaMasked, ModelFamiliesMatchTheCpu) {
  for (const ModelShape& shape : models::test::families()) {
    for (const double rate : {0.0, 0.2}) {
      const auto model = models::make_model(shape, {}, 3);
      const at::Tensor ids = at::randint(shape.vocab, {2, 24}, at::kLong);
      const at::Tensor starts = models::test::packed_starts(2, 24);
      const auto run = [&](c10::Device device) {
        model->to(device);
        model->zero_grad();
        auto pass = std::make_shared<Pass>();
        with_documents(*pass, starts, device);
        pass->dropout = pass->attention_dropout = rate;
        pass->seed = 8;
        const PassScope scope(pass);
        const at::Tensor loss = model->loss(ids.to(device), ids.to(device));
        loss.backward();
        std::vector<at::Tensor> all = {loss.detach().to(at::kCPU, at::kFloat)};
        for (const at::Tensor& param : model->parameters()) all.push_back(param.grad().cpu());
        return all;
      };
      const auto here = run(at::kCPU), there = run(kMaskedGpu);
      for (std::size_t i = 0; i < here.size(); ++i) {
        EXPECT_LE((here[i] - there[i]).abs().max().item<double>(),
                  2e-3 * here[i].abs().max().item<double>() + 1e-5)
            << shape.name << " dropout " << rate << " tensor " << i;
      }
    }
  }
}

// 16,384 tokens in bf16: a tokens × tokens matrix never exists.
TEST_F(CudaMasked, LongSequencesNeedNoQuadraticMemory) {
  for (const std::int64_t window : {std::int64_t{0}, std::int64_t{4096}}) {
    const at::Tensor x =
        at::randn({1, 16384, 3 * 8 * 64}, at::device(kMaskedGpu).dtype(at::kBFloat16))
            .requires_grad_();
    AttentionOptions how;
    how.window = window;
    EXPECT_NE(attention_kernel(x, 8, 8, how).kernel, AttentionKernel::none) << window;
    attention(x, 8, 8, how).sum().backward();
    EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera::nn
