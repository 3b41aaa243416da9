// Experts on a GPU, compared with the loops on the CPU and with ATen's operations.

#include <ATen/ATen.h>

#include "tessera/experts/gpu.h"
#include "tessera/experts/products.h"
#include "tessera/kernels/cuda/experts.h"
#include "tests/experts/reference.h"

namespace tessera::experts {
namespace {

class CudaExperts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || !kernels::cuda::built()) GTEST_SKIP() << "skipped: no CUDA device here";
    torch::manual_seed(11);
  }
};

void expect_close(const at::Tensor& got, const at::Tensor& wanted, double limit,
                  const std::string& text) {
  ASSERT_EQ(got.defined(), wanted.defined()) << text;
  if (!got.defined()) return;
  EXPECT_LE(test::difference(got.cpu(), wanted.cpu()), limit) << text;
}

TEST_F(CudaExperts, RoutersMatchTheLoops) {
  for (const std::int64_t count : {1, 2, 31, 32, 33, 64, 100, 128, 256, 1000, 1024}) {
    for (const std::int64_t most : {1, 2, 8, 40}) {
      for (const int parts : {1, 3}) {
        RouterCall call;
        call.experts.count = count;
        call.experts.per_token = std::min(count, most);
        call.experts.scores = count % 2 == 0 ? RouterScores::softmax : RouterScores::sigmoid;
        call.experts.normalized = most > 2;  // of one expert the gradient is 0
        call.experts.scale = 2.5;
        call.experts.balance_loss = 0.3;
        call.experts.z_loss = 0.1;
        call.rows = {3, 10, {parts - 1, parts}, 10 * parts - (most == 8 ? 4 : 0)};
        const std::string text = str(count, " experts, ", most, " per token, ", parts, " parts");
        at::Tensor logits = at::randn({30, count}) * 3;
        if (most == 8) logits = logits.round();  // equal scores
        const at::Tensor bias = most == 40 ? at::randn({count}) : at::Tensor();
        const auto gpu = [](const at::Tensor& x) { return x.defined() ? x.cuda() : x; };

        const at::Tensor chosen = kRouterLoops.choose(logits, bias, call);
        const at::Tensor on_gpu = kRouterKernels.choose(gpu(logits), gpu(bias), call);
        ASSERT_TRUE(at::equal(on_gpu.cpu(), chosen)) << text;
        const at::Tensor counts = kRouterLoops.count(chosen, call);
        ASSERT_TRUE(at::equal(kRouterKernels.count(on_gpu, call).cpu(), counts)) << text;
        if (most == 2) {  // some pairs beyond a capacity
          kRouterLoops.drop(chosen, at::zeros_like(counts), 3, call);
          kRouterKernels.drop(on_gpu, gpu(at::zeros_like(counts)), 3, call);
          ASSERT_TRUE(at::equal(on_gpu.cpu(), chosen)) << text;
        }
        const at::Tensor rows = counts.sum(1);
        const Weighed wanted = kRouterLoops.weigh(logits, chosen, rows, call);
        const Weighed got = kRouterKernels.weigh(gpu(logits), on_gpu, gpu(rows), call);
        expect_close(got.weights, wanted.weights, 1e-6, text + ", weights");
        expect_close(got.loss, wanted.loss, 1e-6, text + ", loss");
        EXPECT_TRUE(at::allclose(got.sums.cpu(), wanted.sums, 1e-9, 1e-9)) << text;
        const at::Tensor dweights = at::randn(chosen.sizes()), dloss = at::randn({});
        for (const int which : {1, 2, 3}) {
          const at::Tensor dw = which & 1 ? dweights : at::Tensor();
          const at::Tensor dl = which & 2 ? dloss : at::Tensor();
          expect_close(
              kRouterKernels.backward(gpu(logits), on_gpu, gpu(rows), gpu(dw), gpu(dl), call),
              kRouterLoops.backward(logits, chosen, rows, dw, dl, call), 1e-6,
              str(text, ", backward ", which));
        }
      }
    }
  }
}

TEST_F(CudaExperts, SortsPairsAsTheCpuDoes) {
  for (const std::int64_t count : {1, 5, 64, 1024}) {
    for (const std::int64_t tokens : {0, 1, 37, 1024, 5000}) {
      for (const bool dropped : {false, true}) {
        const at::Tensor experts = at::randint(dropped ? -2 : 0, count, {tokens, 3}, at::kInt);
        const SortedPairs wanted = sort_pairs(experts, count);
        const SortedPairs got = gpu::sort_pairs(experts.cuda(), count);
        const std::string text = str(count, " experts, ", tokens, " tokens");
        EXPECT_TRUE(at::equal(got.counts.cpu(), wanted.counts)) << text;
        EXPECT_TRUE(at::equal(got.slots.cpu(), wanted.slots)) << text;
        const std::int64_t rows = wanted.order.numel();
        EXPECT_TRUE(at::equal(got.order.cpu().narrow(0, 0, rows), wanted.order)) << text;
        // Each pair has one row, dropped ones too.
        EXPECT_TRUE(
            at::equal(std::get<0>(got.order.cpu().sort()), at::arange(experts.numel(), at::kInt)))
            << text;
        EXPECT_TRUE(at::equal(gpu::order_of(got.slots, experts.numel()).cpu().narrow(0, 0, rows),
                              wanted.order))
            << text;
      }
    }
  }
}

TEST_F(CudaExperts, RowKernelsMatchAten) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const double limit = type == at::kFloat ? 1e-6 : type == at::kHalf ? 2e-3 : 1e-2;
    for (const std::int64_t cols : {1, 7, 8, 136, 1100, 2048}) {
      const at::Tensor x = at::randn({50, cols}).to(type).cuda();
      const at::Tensor source = at::randint(50, {90}, at::kInt).cuda();
      const std::string text = str(c10::toString(type), ", ", cols, " columns");
      EXPECT_TRUE(at::equal(gpu::rows_of(x, source), at::index_select(x, 0, source))) << text;
      const at::Tensor slots = at::randint(-1, 50, {20, 4}, at::kInt).cuda();
      expect_close(gpu::combine(x, slots), combine_by_operations(x, slots), limit, text);
      for (const Activation activation :
           {Activation::silu, Activation::gelu, Activation::gelu_tanh, Activation::relu}) {
        for (const bool gated : {true, false}) {
          const ActivationKind kind{gated, activation};
          const at::Tensor h = (at::randn({50, gated ? 2 * cols : cols}) * 2).to(type).cuda();
          const at::Tensor weights = at::randn({50}).cuda();
          const at::Tensor da = at::randn({50, cols}).to(type).cuda();
          const at::Tensor exact = h.to(at::kDouble), d = da.to(at::kDouble);
          const std::string of = str(text, ", ", name(activation), gated ? " gated" : "");
          expect_close(gpu::activate(h, weights, kind),
                       activate_by_operations(exact, weights, kind), limit, of);
          const ActivationGradients wanted =
              activate_backward_by_operations(exact, weights, d, kind);
          const ActivationGradients got = gpu::activate_backward(h, weights, da.clone(), kind);
          expect_close(got.value, wanted.value, limit, of + ", value");
          expect_close(got.dh, wanted.dh, limit, of + ", dh");
          expect_close(got.dweights, wanted.dweights, 1e-4, of + ", dweights");
        }
      }
    }
  }
}

// The layer on the GPU, with the numbers of the layer on the CPU.
void compare_layer(const test::Case& of, double limit) {
  const std::string text = of.text();
  MixtureOfExperts host = test::make_layer(of), layer = test::make_layer(of);
  layer->to(c10::Device(c10::kCUDA, 0));
  const at::Tensor values = at::randn({of.batch, of.tokens, of.layer.hidden}).to(of.type);
  const at::Tensor dy = at::randn(values.sizes()).to(of.type);
  const at::Tensor exact = values.to(at::kDouble).requires_grad_();
  test::Result wanted = test::reference(of, host, exact);
  nn::Pass pass = test::pass_of(of);
  ((wanted.y * dy.to(at::kDouble)).sum() + wanted.loss * (pass.row_weight * 3)).backward();
  pass.loss_scale = pass.loss_scale.cuda();
  const nn::PassScope scope(std::make_shared<const nn::Pass>(pass));
  const at::Tensor x = values.cuda().requires_grad_();
  const at::Tensor y = layer->forward(x);
  y.backward(dy.cuda());
  expect_close(y, wanted.y, limit, text);
  expect_close(x.grad(), exact.grad(), 2 * limit, text + ", x");
  for (const auto& param : layer->named_parameters()) {
    const at::Tensor expected = wanted.params.at(param.key()).grad();
    const at::Tensor got = param.value().grad();
    if (!expected.defined()) {  // an expert without a token
      ASSERT_TRUE(got.defined()) << text << param.key();
      EXPECT_EQ(got.abs().max().item<double>(), 0) << text << param.key();
    } else if (expected.abs().max().item<double>() >= 1e-12) {
      expect_close(got, expected, 4 * limit, text + ", " + param.key());
    }
  }
  test::expect_equal_loads(layer->take_load(), wanted.load, 1e-4, text);
}

test::Case gpu_case() {
  test::Case of;
  of.tokens = 9;
  of.layer.hidden = 32;
  of.layer.experts = {.count = 6, .per_token = 2, .width = 16};
  of.layer.experts.balance_loss = 0.2;
  of.layer.experts.z_loss = 0.1;
  of.layer.label = "blocks.2.experts";
  return of;
}

TEST_F(CudaExperts, LayersMatchTheReference) {
  for (const bool gated : {true, false}) {
    for (const bool biases : {false, true}) {
      for (const double capacity : {0.0, 0.75}) {
        test::Case of = gpu_case();
        of.layer.gated = gated;
        of.layer.activation = gated ? Activation::silu : Activation::gelu_tanh;
        of.layer.biases = biases;
        of.layer.experts.capacity = capacity;
        of.layer.experts.shared_width = biases ? 8 : 0;
        of.layer.experts.jitter = gated ? 0.1 : 0;
        of.row_tokens = biases ? 7 : 0;
        compare_layer(of, 5e-6);
        of.layer.experts.jitter = 0;
        of.layer.experts.count = 64;
        of.layer.experts.per_token = 8;
        of.layer.experts.scores = RouterScores::sigmoid;
        compare_layer(of, 5e-6);
      }
    }
  }
}

// 12 and 6 elements of 2 bytes are no multiple of 16 bytes, which at::_grouped_mm needs.
TEST_F(CudaExperts, LayersOfAnyWidthMatchTheReference) {
  for (const std::int64_t width : {6, 16}) {
    for (const std::int64_t hidden : {12, 32}) {
      for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
        test::Case of = gpu_case();
        of.type = type;
        of.layer.hidden = hidden;
        of.layer.experts.width = width;
        of.layer.experts.count = 4;
        compare_layer(of, type == at::kFloat ? 5e-6 : 3e-2);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::experts
