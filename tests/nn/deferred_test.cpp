// Tests of deferred weight gradients.

#include "tessera/nn/deferred.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "tessera/nn/ops.h"
#include "tessera/nn/recompute.h"

namespace tessera::nn {
namespace {

struct Net {
  at::Tensor w1, b1, w2, b2, head;
  at::Tensor x, targets;

  explicit Net(at::ScalarType dtype) {
    torch::manual_seed(3);
    const auto param = [&](at::IntArrayRef sizes) {
      return (at::randn(sizes) * 0.5).to(dtype).set_requires_grad(true);
    };
    w1 = param({12, 6}), b1 = param({12}), w2 = param({6, 12}), b2 = param({6});
    head = param({9, 6});
    x = at::randn({2, 5, 6}).to(dtype).set_requires_grad(true);
    targets = at::arange(10).remainder(9).view({2, 5});
  }
  at::Tensor loss(Recompute mode) const {
    const Net* self = this;
    const at::Tensor y = recompute(
        mode,
        [self](at::Tensor in) {
          return linear(linear_gelu(in, self->w1, self->b1), self->w2, self->b2);
        },
        x);
    return linear_cross_entropy(y, head, targets) * 0.25;
  }
  std::vector<at::Tensor> weights() const { return {w1, w2, head}; }
  std::vector<at::Tensor> others() const { return {b1, b2, x}; }
};

class Deferred : public ::testing::TestWithParam<std::tuple<at::ScalarType, Recompute>> {};
INSTANTIATE_TEST_SUITE_P(
    All, Deferred,
    ::testing::Combine(::testing::Values(at::kFloat, at::kBFloat16, at::kDouble),
                       ::testing::Values(Recompute::none, Recompute::selective, Recompute::full)));

TEST_P(Deferred, GradientsMatchBackwardWithoutDeferral) {
  const auto [dtype, mode] = GetParam();
  const Net now(dtype), later(dtype);
  const double tolerance = dtype == at::kBFloat16 ? 2e-2 : 1e-5;
  for (int micro = 0; micro < 2; ++micro) {  // the second adds to the first
    now.loss(mode).backward();
    const auto collection = c10::make_intrusive<DeferredGradients>();
    at::Tensor loss;
    {
      const DeferredGradients::Scope scope(collection);
      loss = later.loss(mode);
    }
    EXPECT_FALSE(DeferredGradients::current());
    loss.backward();
    // linear_cross_entropy supports only the types of Tessera's kernels.
    const int expected = dtype == at::kDouble ? 2 : 3;
    if (dtype != at::kDouble) {
      EXPECT_EQ(collection->pushed(), expected);
    }
    for (const at::Tensor& w : later.weights()) {
      if (micro == 0 && collection->pushed() == 3) {
        EXPECT_FALSE(w.grad().defined());
      }
    }
    collection->run();
    collection->run();  // nothing is left
    const auto compare = [&](const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        EXPECT_TRUE(at::allclose(a[i].grad(), b[i].grad(), tolerance, tolerance)) << i;
      }
    };
    compare(later.weights(), now.weights());
    compare(later.others(), now.others());
  }
}

struct CountHook final : torch::autograd::PostAccumulateGradHook {
  explicit CountHook(int& count) : calls(count) {}
  void operator()(const torch::autograd::Variable& param) override {
    EXPECT_TRUE(param.grad().defined());
    ++calls;
  }
  int& calls;
};

TEST(DeferredTest, AddsToAnExistingGradient) {
  const at::Tensor w = at::ones({3, 2}).set_requires_grad(true);
  const at::Tensor buffer = at::full({6}, 5.0f);
  w.mutable_grad() = buffer.view({3, 2});
  const auto collection = c10::make_intrusive<DeferredGradients>();
  {
    const DeferredGradients::Scope scope(collection);
    linear(at::ones({4, 2}), w, at::Tensor()).sum().backward();
  }
  EXPECT_EQ(buffer.sum().item<float>(), 30);
  int calls = 0;
  torch::autograd::impl::set_post_acc_grad_hooks(w, std::make_unique<CountHook>(calls));
  collection->run();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(buffer.sum().item<float>(), 30 + 24);
  EXPECT_EQ(w.grad().data_ptr(), buffer.data_ptr());
}

// A weight that is computed from other tensors must pass its gradient on in backward.
TEST(DeferredTest, DoesNotDeferWeightsThatAreNotLeaves) {
  const at::Tensor w = at::ones({3, 2}).set_requires_grad(true);
  const at::Tensor frozen = at::ones({3, 2});
  const auto collection = c10::make_intrusive<DeferredGradients>();
  const DeferredGradients::Scope scope(collection);
  const at::Tensor x = at::ones({4, 2}).set_requires_grad(true);
  (linear(x, w * 2, at::Tensor()).sum() + linear(x, frozen, at::Tensor()).sum()).backward();
  EXPECT_EQ(collection->pushed(), 0);
  EXPECT_EQ(w.grad().sum().item<float>(), 48);
  EXPECT_EQ(x.grad().sum().item<float>(), 8 * 6 + 8 * 3);
}

// A user's hook sees the gradient in backward, and its result is used.
TEST(DeferredTest, DoesNotDeferWeightsWithHooks) {
  const at::Tensor w = at::ones({3, 2}).set_requires_grad(true);
  int calls = 0;
  w.register_hook([&](at::Tensor grad) {
    ++calls;
    return grad * 10;
  });
  const auto collection = c10::make_intrusive<DeferredGradients>();
  {
    const DeferredGradients::Scope scope(collection);
    linear(at::ones({4, 2}), w, at::Tensor()).sum().backward();
  }
  collection->run();
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(collection->pushed(), 0);
  EXPECT_EQ(w.grad().sum().item<float>(), 240);
}

}  // namespace
}  // namespace tessera::nn
