// Compares attention on a GPU with double precision on the CPU, and checks that the modes none,
// selective and full agree bitwise even if all freed memory is filled with NaN. Skipped without a
// GPU.

#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/core/text.h"
#include "tessera/models/language_model.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_attention.h"
#include "tessera/nn/recompute.h"

namespace tessera::nn {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
    torch::manual_seed(11);
  }
};

// Fills the memory that the caching allocator will return next, to detect reads before writes.
void poison() {
  std::vector<at::Tensor> blocks;
  for (std::int64_t bytes = 512; bytes <= (16 << 20); bytes *= 2) {
    for (int i = 0; i < 6; ++i) {
      blocks.push_back(at::full({bytes / 4}, std::numeric_limits<float>::quiet_NaN(),
                                at::device(kGpu).dtype(at::kFloat)));
    }
  }
}

// Reference attention with explicit scores, in double precision.
at::Tensor reference(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t dim = qkv.size(2) / (heads + 2 * kv_heads), tokens = qkv.size(1);
  const at::Tensor all = qkv.unflatten(2, {heads + 2 * kv_heads, dim}).transpose(1, 2);
  const auto spread = [&](std::int64_t first) {
    return all.narrow(1, first, kv_heads).repeat_interleave(heads / kv_heads, 1);
  };
  const at::Tensor q = all.narrow(1, 0, heads), k = spread(heads), v = spread(heads + kv_heads);
  const at::Tensor future = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor scores = (q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(dim)))
                                .masked_fill(future, -std::numeric_limits<double>::infinity());
  return scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2);
}

struct Attended {
  at::Tensor out, grad;
};

using Attend = std::function<at::Tensor(const at::Tensor&)>;
Attended attend(const Attend& f, const at::Tensor& qkv, const at::Tensor& dout) {
  const at::Tensor x = qkv.detach().clone().requires_grad_();
  poison();
  const at::Tensor out = f(x);
  poison();
  out.backward(dout);
  return {out.detach(), x.grad()};
}

void expect_close(const at::Tensor& got, const at::Tensor& want, double limit,
                  const std::string& what) {
  ASSERT_EQ(got.sizes(), want.sizes()) << what;
  const double scale = want.abs().max().item<double>();
  const double off = (got.to(at::kCPU, at::kDouble) - want).abs().max().item<double>();
  EXPECT_LE(off, limit * scale) << what;
}

struct Sizes {
  std::int64_t batch, tokens, heads, kv_heads, dim;
};
constexpr Sizes kSizes[] = {{2, 64, 2, 2, 64},   {1, 200, 3, 3, 64}, {2, 130, 4, 2, 64},
                            {1, 129, 8, 2, 128}, {3, 17, 2, 1, 32},  {1, 1, 2, 2, 64},
                            {2, 40, 2, 2, 12},   {2, 40, 4, 2, 6}};

void compare(const Sizes& of, at::ScalarType type, const Attend& ours, const std::string& what) {
  const double limit = type == at::kFloat ? 2e-4 : type == at::kHalf ? 4e-3 : 2e-2;
  const at::Tensor qkv =
      at::randn({of.batch, of.tokens, (of.heads + 2 * of.kv_heads) * of.dim}, at::kDouble).to(type);
  const at::Tensor dout = at::randn({of.batch, of.tokens, of.heads * of.dim}, at::kDouble).to(type);
  const Attended want =
      attend([&](const at::Tensor& x) { return reference(x, of.heads, of.kv_heads); },
             qkv.to(at::kDouble), dout.to(at::kDouble));
  const Attended got = attend(ours, qkv.to(kGpu), dout.to(kGpu));
  const std::string text = str(what, " ", c10::toString(type), " [", of.batch, ", ", of.tokens,
                               ", ", of.heads, "/", of.kv_heads, ", ", of.dim, "]");
  EXPECT_TRUE(got.out.is_contiguous()) << text;
  expect_close(got.out, want.out, limit, text + " forward");
  expect_close(got.grad, want.grad, limit, text + " backward");
}

TEST_F(CudaOps, AttentionMatchesTheFormula) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Sizes& of : kSizes) {
      const at::Tensor qkv = at::empty({of.batch, of.tokens, (of.heads + 2 * of.kv_heads) * of.dim},
                                       at::device(kGpu).dtype(type));
      const AttentionChoice choice = attention_kernel(qkv, of.heads, of.kv_heads);
      std::printf("%s [%ld, %ld, %ld/%ld, %ld]: %s, because %s\n", c10::toString(type),
                  static_cast<long>(of.batch), static_cast<long>(of.tokens),
                  static_cast<long>(of.heads), static_cast<long>(of.kv_heads),
                  static_cast<long>(of.dim), name(choice.kernel), choice.why);
      compare(
          of, type, [&](const at::Tensor& x) { return nn::attention(x, of.heads, of.kv_heads); },
          name(choice.kernel));
    }
  }
}

// Forward and backward of one kernel as an operation.
struct OneKernel : public torch::autograd::Function<OneKernel> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            std::int64_t heads, std::int64_t kv_heads, std::int64_t kernel) {
    auto kept = gpu_attention_forward(static_cast<AttentionKernel>(kernel), x, heads, kv_heads);
    ctx->saved_data["args"] = std::vector<std::int64_t>{heads, kv_heads, kernel};
    const at::Tensor out = kept[0];
    kept.push_back(x);
    ctx->save_for_backward(std::move(kept));
    return out;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list grads) {
    auto kept = ctx->get_saved_variables();
    const at::Tensor x = kept.back();
    kept.pop_back();
    const auto args = ctx->saved_data["args"].toIntVector();
    return {gpu_attention_backward(static_cast<AttentionKernel>(args[2]), x, args[0], args[1],
                                   grads[0].contiguous(), kept),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// The kernels that are not chosen must be correct too, if this GPU supports them.
TEST_F(CudaOps, EveryAttentionKernelMatchesTheFormula) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const AttentionKernel kernel :
         {AttentionKernel::cudnn, AttentionKernel::flash, AttentionKernel::efficient}) {
      if (type == at::kFloat && kernel != AttentionKernel::efficient) continue;
      for (const Sizes& of : kSizes) {
        if (of.dim % 8 != 0 || of.tokens == 1) continue;
        try {
          compare(
              of, type,
              [&](const at::Tensor& x) {
                return OneKernel::apply(x, of.heads, of.kv_heads,
                                        static_cast<std::int64_t>(kernel));
              },
              name(kernel));
        } catch (const c10::Error& error) {
          std::printf("%s is not to be had here: %s\n", name(kernel),
                      error.what_without_backtrace());
        }
      }
    }
  }
}

// The result and the gradient of the chosen kernel need no copy.
TEST_F(CudaOps, AttentionReadsAndWritesInPlace) {
  const at::Tensor qkv = at::randn({2, 128, 8 * 64}, at::device(kGpu).dtype(at::kBFloat16));
  for (const std::int64_t kv_heads : {1, 2}) {  // 6 and 4 heads
    const std::int64_t heads = 8 - 2 * kv_heads;
    const AttentionChoice choice = attention_kernel(qkv, heads, kv_heads);
    if (choice.kernel != AttentionKernel::cudnn) GTEST_SKIP() << "no cuDNN: " << choice.why;
    const at::Tensor all = qkv.view({2, 128, 8, 64}).transpose(1, 2);
    const auto result = at::_scaled_dot_product_cudnn_attention(
        all.narrow(1, 0, heads), all.narrow(1, heads, kv_heads),
        all.narrow(1, heads + kv_heads, kv_heads), {}, true, 0.0, true);
    EXPECT_TRUE(std::get<0>(result).transpose(1, 2).is_contiguous());
    EXPECT_TRUE(std::get<1>(result).defined());
  }
}

TEST_F(CudaOps, AttentionOfAnEmptyTensorIsEmpty) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t kv_heads : {1, 2}) {
      const at::Tensor qkv =
          at::zeros({0, 16, (2 + 2 * kv_heads) * 8}, at::device(kGpu).dtype(type)).requires_grad_();
      const at::Tensor out = nn::attention(qkv, 2, kv_heads);
      EXPECT_EQ(out.sizes(), at::IntArrayRef({0, 16, 16}));
      out.sum().backward();
      EXPECT_EQ(qkv.grad().sizes(), qkv.sizes());
    }
  }
}

// Block that uses torch's attention, which only the recorder sees.
struct PlainImpl : torch::nn::Module {
  PlainImpl()
      : qkv(register_module("qkv", torch::nn::Linear(128, 384))),
        proj(register_module("proj", torch::nn::Linear(128, 128))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor heads =
        qkv->forward(x.tanh()).unflatten(2, {3, 2, 64}).permute({2, 0, 3, 1, 4});
    const at::Tensor mixed =
        at::scaled_dot_product_attention(heads[0], heads[1], heads[2], {}, 0.0, true);
    return x + proj->forward(mixed.transpose(1, 2).flatten(2)).tanh();
  }
  torch::nn::Linear qkv, proj;
};

using Forward = std::function<at::Tensor(at::Tensor)>;
struct Net {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
};

Net plain() {
  const auto block = std::make_shared<PlainImpl>();
  return {block, [block](at::Tensor x) { return block->forward(x); }};
}

Net block_of(const ModelShape& shape) {
  const auto block =
      std::make_shared<models::BlockImpl>(shape, tensor_parallel::Axis{}, "block", ParamOptions());
  return {block, [block](at::Tensor x) { return block->forward(x); }};
}

ModelShape gpt() { return gpt_shape(1, 128, 2, 64, 64); }
ModelShape llama() {
  ModelShape shape = gpt();
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.hidden = 256;
  shape.ffn = 384;
  shape.positions = 0;
  shape.swiglu = true;
  shape.biases = shape.tied = false;
  return shape;
}

// Returns the result, and the gradients of input and parameters, of two such nets in sequence.
std::vector<at::Tensor> gradients(const std::function<Net()>& make, std::int64_t width,
                                  Recompute mode, at::ScalarType type) {
  torch::manual_seed(5);
  std::vector<Net> nets;
  for (int i = 0; i < 2; ++i) {
    nets.push_back(make());
    nets.back().module->to(kGpu, type);
    const at::NoGradGuard unrecorded;
    for (const auto& p : nets.back().module->named_parameters()) {
      const bool scale =
          p.key().find("norm") != std::string::npos && p.key().find("weight") != std::string::npos;
      p.value().copy_(at::randn(p.value().sizes(), at::kDouble) * 0.1 + (scale ? 1 : 0));
    }
  }
  const at::Tensor x =
      at::randn({3, 64, width}, at::kDouble).to(kGpu, type).detach().requires_grad_();
  poison();
  at::Tensor y = x;
  for (const Net& net : nets) y = recompute(mode, net.forward, y);
  poison();
  y.to(at::kFloat).square().sum().backward();
  std::vector<at::Tensor> result = {y.detach(), x.grad()};
  for (const Net& net : nets) {
    for (const at::Tensor& p : net.module->parameters()) result.push_back(p.grad());
  }
  return result;
}

void compare_modes(const std::string& what, const std::function<Net()>& make, std::int64_t width) {
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto want = gradients(make, width, Recompute::none, type);
    for (std::size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(want[i].defined()) << what << " " << type << " " << i;
      ASSERT_TRUE(at::isfinite(want[i]).all().item<bool>()) << what << " " << type << " " << i;
      EXPECT_GT(want[i].abs().max().item<float>(), 0) << what << " " << type << " " << i;
    }
    for (const auto mode : {Recompute::selective, Recompute::full, Recompute::none}) {
      const auto got = gradients(make, width, mode, type);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(at::equal(got[i], want[i]))
            << what << " " << nn::name(mode) << " " << type << " " << i << " off by "
            << (got[i] - want[i]).abs().max().item<float>() << " of "
            << want[i].abs().max().item<float>();
      }
    }
  }
}

TEST_F(CudaOps, GptBlockGradientsDoNotDependOnRecomputation) {
  compare_modes(
      "gpt", [] { return block_of(gpt()); }, 128);
}

TEST_F(CudaOps, LlamaBlockGradientsDoNotDependOnRecomputation) {
  compare_modes(
      "llama", [] { return block_of(llama()); }, 256);
}

TEST_F(CudaOps, TorchAttentionGradientsDoNotDependOnRecomputation) {
  compare_modes("torch's attention", plain, 128);
}

}  // namespace
}  // namespace tessera::nn
