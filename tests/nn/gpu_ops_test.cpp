// Compares the operations of nn/ops.h and fused linears on a GPU, with gradients, with the same
// formulas in double precision on the CPU. Skipped without a GPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <functional>
#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/kernels/cuda/cuda.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/gradient_place.h"
#include "tessera/nn/ops.h"
#include "tessera/tensor_parallel/fused_linear.h"

namespace tessera::nn {
namespace {

using Tensors = std::vector<at::Tensor>;
using Function = std::function<Tensors(const Tensors&)>;

std::string missing() {
  if (!torch::cuda::is_available()) return "no GPU";
  if (!kernels::cuda::built()) return "built without CUDA kernels";
  return "";
}
#define NEEDS_GPU() \
  if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why

// Returns values that the type can represent, in double.
Tensors values(const std::vector<std::vector<std::int64_t>>& shapes, at::ScalarType type) {
  Tensors out;
  for (const auto& shape : shapes) {
    out.push_back(at::randn(shape, at::kDouble).mul_(0.5).to(type).to(at::kDouble));
  }
  return out;
}

// Returns the outputs, then the gradients of all inputs for the sum of (output · fixed weights).
Tensors run(const Function& f, const Tensors& inputs, c10::Device device, at::ScalarType type) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) {
    leaves.push_back(input.to(device, type).detach().clone().set_requires_grad(true));
  }
  const Tensors outputs = f(leaves);
  at::Tensor sum;
  for (const at::Tensor& out : outputs) {
    const at::Tensor wave = at::arange(out.numel(), at::kDouble).mul_(0.37).sin_().view_as(out);
    // Rounded to values that all types can represent.
    const at::Tensor exact = wave.to(at::kBFloat16).to(device, out.scalar_type());
    const at::Tensor term = (out * exact).sum();
    sum = sum.defined() ? sum + term : term;
  }
  sum.backward();
  Tensors results;
  for (const at::Tensor& out : outputs) results.push_back(out.detach().to(at::kCPU, at::kDouble));
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.grad().to(at::kCPU, at::kDouble));
  return results;
}

void compare(const std::string& what, const Function& ours, const Function& reference,
             const std::vector<std::vector<std::int64_t>>& shapes) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    at::manual_seed(7);
    const Tensors inputs = values(shapes, type);
    const Tensors want = run(reference, inputs, at::kCPU, at::kDouble);
    const Tensors got = run(ours, inputs, {at::kCUDA, 0}, type);
    ASSERT_EQ(got.size(), want.size());
    const double tolerance = type == at::kFloat ? 2e-3 : type == at::kHalf ? 1e-2 : 4e-2;
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].sizes(), want[i].sizes());
      const double scale = want[i].abs().max().item<double>() + 1e-6;
      const double off = (got[i] - want[i]).abs().max().item<double>() / scale;
      EXPECT_LT(off, tolerance) << what << " in " << c10::toString(type) << ", result " << i
                                << " of shape " << want[i].sizes();
    }
  }
}

using Kind = Operand::Kind;

// norm(x + branch) · wᵀ + b, and x + branch.
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, const NormWeights& norm,
                                              const at::Tensor& w, const at::Tensor& b,
                                              const at::Tensor& branch = {}) {
  return tensor_parallel::fused_column_linear(
      {}, {.x = x, .kind = Kind::norm, .norm = norm, .branch = branch}, {w, b}, "test");
}
// act(x + before) · wᵀ + b + residual.
at::Tensor act_linear(Kind kind, const at::Tensor& x, const at::Tensor& before, const at::Tensor& w,
                      const at::Tensor& b, const at::Tensor& residual) {
  return tensor_parallel::fused_row_linear({}, {.x = x, .kind = kind, .bias = before},
                                           {w, b, {}, residual}, "test");
}

at::Tensor norm_reference(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (b.defined()) return at::layer_norm(x, {x.size(-1)}, w, b, 1e-5);
  return x * (x.square().mean(-1, true) + 1e-5).rsqrt() * w;
}
at::Tensor swiglu_reference(const at::Tensor& x) {
  const auto parts = x.chunk(2, -1);
  return at::silu(parts[0]) * parts[1];
}

TEST(GpuOps, NormsAndNormLinearMatchDoublePrecision) {
  NEEDS_GPU();
  for (const std::int64_t cols : {16, 40, 768, 1600}) {
    for (const std::int64_t tokens : {1, 7, 130}) {
      compare(
          "layer norm",
          [](const Tensors& t) -> Tensors { return {nn::layer_norm(t[0], t[1], t[2])}; },
          [](const Tensors& t) -> Tensors { return {norm_reference(t[0], t[1], t[2])}; },
          {{2, tokens, cols}, {cols}, {cols}});
      compare(
          "rms norm", [](const Tensors& t) -> Tensors { return {nn::rms_norm(t[0], t[1])}; },
          [](const Tensors& t) -> Tensors { return {norm_reference(t[0], t[1], {})}; },
          {{2, tokens, cols}, {cols}});
      compare(
          "norm of a sum",
          [](const Tensors& t) -> Tensors {
            const auto [y, sum] = nn::add_norm(t[0], t[1], {t[2], t[3]});
            return {y, sum};
          },
          [](const Tensors& t) -> Tensors {
            const at::Tensor sum = t[0] + t[1];
            return {norm_reference(sum, t[2], t[3]), sum};
          },
          {{2, tokens, cols}, {2, tokens, cols}, {cols}, {cols}});
      compare(
          "norm and linear",
          [](const Tensors& t) -> Tensors {
            const auto [y, x] = norm_linear(t[0], {t[1], t[2]}, t[3], t[4]);
            return {y, x};
          },
          [](const Tensors& t) -> Tensors {
            return {at::linear(norm_reference(t[0], t[1], t[2]), t[3], t[4]), t[0]};
          },
          {{2, tokens, cols}, {cols}, {cols}, {24, cols}, {24}});
      compare(
          "norm of a sum and linear",
          [](const Tensors& t) -> Tensors {
            const auto [y, sum] = norm_linear(t[0], {t[1], {}}, t[2], {}, t[3]);
            return {y, sum};
          },
          [](const Tensors& t) -> Tensors {
            const at::Tensor sum = t[0] + t[3];
            return {at::linear(norm_reference(sum, t[1], {}), t[2]), sum};
          },
          {{2, tokens, cols}, {cols}, {24, cols}, {2, tokens, cols}});
    }
  }
}

TEST(GpuOps, LinearMatchesDoublePrecisionWithEveryOption) {
  NEEDS_GPU();
  compare(
      "linear", [](const Tensors& t) -> Tensors { return {nn::linear(t[0], t[1], t[2])}; },
      [](const Tensors& t) -> Tensors { return {at::linear(t[0], t[1], t[2])}; },
      {{3, 50, 72}, {136, 72}, {136}});
  compare(
      "linear, odd sizes", [](const Tensors& t) -> Tensors { return {nn::linear(t[0], t[1], {})}; },
      [](const Tensors& t) -> Tensors { return {at::linear(t[0], t[1])}; }, {{5, 13}, {7, 13}});
  compare(
      "linear and residual",
      [](const Tensors& t) -> Tensors {
        return {act_linear(Kind::plain, t[0], {}, t[1], t[2], t[3])};
      },
      [](const Tensors& t) -> Tensors { return {at::linear(t[0], t[1], t[2]) + t[3]}; },
      {{3, 50, 72}, {136, 72}, {136}, {3, 50, 136}});
}

TEST(GpuOps, ActivationsAndActivationLinearMatchDoublePrecision) {
  NEEDS_GPU();
  for (const std::int64_t cols : {16, 104, 3072}) {
    compare(
        "gelu", [](const Tensors& t) -> Tensors { return {nn::gelu(t[0], t[1])}; },
        [](const Tensors& t) -> Tensors { return {at::gelu(t[0] + t[1], "tanh")}; },
        {{2, 33, cols}, {cols}});
    compare(
        "swiglu", [](const Tensors& t) -> Tensors { return {nn::swiglu(t[0])}; },
        [](const Tensors& t) -> Tensors { return {swiglu_reference(t[0])}; }, {{2, 33, 2 * cols}});
    compare(
        "gelu and linear",
        [](const Tensors& t) -> Tensors {
          return {act_linear(Kind::gelu, t[0], t[1], t[2], t[3], t[4])};
        },
        [](const Tensors& t) -> Tensors {
          return {at::linear(at::gelu(t[0] + t[1], "tanh"), t[2], t[3]) + t[4]};
        },
        {{2, 33, cols}, {cols}, {48, cols}, {48}, {2, 33, 48}});
    compare(
        "swiglu and linear",
        [](const Tensors& t) -> Tensors {
          return {act_linear(Kind::swiglu, t[0], {}, t[1], {}, t[2])};
        },
        [](const Tensors& t) -> Tensors {
          return {at::linear(swiglu_reference(t[0]), t[1]) + t[2]};
        },
        {{2, 33, 2 * cols}, {48, cols}, {2, 33, 48}});
  }
}

// x is not a leaf, so it may be rotated in place if it is moved in.
void compare_rotary(const SequencePart& part) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto f = [&](const at::Tensor& leaf) {
      const at::Tensor x = leaf * 2;
      // The first must be unchanged when the second is added to it.
      const std::vector<double> rates = rotary_rates(16, 1e4);
      return x + nn::rotary(x, 3, 16, rates, 1.25, part) +
             nn::rotary(leaf * 3, 3, 16, rates, 1.25, part);
    };
    at::manual_seed(3);
    const at::Tensor start = at::randn({2, part.parts == 1 ? 9 : 10, 80}).to(type);
    at::Tensor results[2], gradients[2];
    for (const int gpu : {0, 1}) {
      const c10::Device device = gpu ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
      const at::Tensor leaf = start.to(device).clone().set_requires_grad(true);
      const at::Tensor y = f(leaf);
      (y * y.detach().cos()).sum().backward();
      results[gpu] = y.detach().cpu().to(at::kFloat);
      gradients[gpu] = leaf.grad().cpu().to(at::kFloat);
    }
    const double tolerance = type == at::kFloat ? 1e-4 : 4e-2;
    EXPECT_LT((results[0] - results[1]).abs().max().item<double>(), tolerance);
    EXPECT_LT((gradients[0] - gradients[1]).abs().max().item<double>(), 2 * tolerance);
  }
}

TEST(GpuOps, RotaryMatchesDoublePrecisionAlsoInPlace) {
  NEEDS_GPU();
  compare_rotary({});
}
TEST(GpuOps, RotaryOfContextParallelRanksUsesTheirPositions) {
  NEEDS_GPU();
  for (int rank = 0; rank < 3; ++rank) compare_rotary({rank, 3});
}

TEST(GpuOps, LossMatchesDoublePrecisionOverManyBlocks) {
  NEEDS_GPU();
  // 300,000 classes: a block contains only some of the rows.
  for (const std::int64_t padding : {0, 39}) {
    const std::int64_t rows = 700, classes = 300001 - 39, cols = 16;
    at::manual_seed(5);
    at::Tensor targets = at::randint(classes, {rows}, at::kLong);
    targets.index_put_({at::tensor({3, 600})}, at::tensor({-1, -1}, at::kLong));
    const at::Tensor h = at::randn({rows, cols}), w = at::randn({classes + padding, cols});
    const auto gradients = [&](c10::Device device, at::ScalarType type, bool ours) -> Tensors {
      const at::Tensor x = h.to(device, type).clone().set_requires_grad(true);
      const at::Tensor weight = w.to(device, type).clone().set_requires_grad(true);
      const at::Tensor y = targets.to(device);
      const at::Tensor loss =
          ours ? nn::linear_cross_entropy(x, weight, y, classes)
               : at::cross_entropy_loss(at::linear(x, weight).narrow(1, 0, classes), y, {},
                                        at::Reduction::Sum, -1);
      (loss * 0.25).backward();
      return {loss.detach().cpu().to(at::kDouble), x.grad().cpu().to(at::kDouble),
              weight.grad().cpu().to(at::kDouble)};
    };
    const Tensors want = gradients(at::kCPU, at::kFloat, false);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      const Tensors got = gradients({at::kCUDA, 0}, type, true);
      const double tolerance = type == at::kFloat ? 2e-3 : 3e-2;
      for (std::size_t i = 0; i < want.size(); ++i) {
        const double scale = want[i].abs().max().item<double>();
        EXPECT_LT((got[i] - want[i]).abs().max().item<double>(), tolerance * scale)
            << c10::toString(type) << ", result " << i << ", padding " << padding;
      }
    }
  }
}

// The classes of two pretended ranks, which exchange maxima and sums by hand: the kernels of both
// run on the same rows, and the gradients add up to those of all classes.
TEST(GpuOps, ShardsOfALossMatchTheWhole) {
  NEEDS_GPU();
  const std::int64_t rows = 130, own = 520, classes = 1021, cols = 24;
  at::manual_seed(5);
  at::Tensor targets = at::randint(classes, {rows}, at::kLong);
  targets.index_put_({at::tensor({3, 60})}, at::tensor({-1, -1}, at::kLong));
  const at::Tensor h = at::randn({rows, cols}), w = at::randn({2 * own, cols});
  const at::Tensor on_gpu = targets.cuda();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor hidden = h.to(at::kCUDA, type), weight = w.to(at::kCUDA, type);
    const at::Tensor logits = at::linear(hidden, weight).to(at::kFloat);
    const at::Tensor valid = logits.narrow(1, 0, classes);
    at::Tensor dh[2], dw[2], loss[2];
    for (const int rank : {0, 1}) {
      const at::Tensor x = hidden.clone().set_requires_grad(true);
      const at::Tensor part = weight.narrow(0, rank * own, own).clone().set_requires_grad(true);
      const gpu::VocabShard shard{
          .first = rank * own,
          .max = [&](const at::Tensor& top) { at::Tensor(top).copy_(valid.amax(1)); },
          .sum =
              [&](const at::Tensor& both) {
                const at::Tensor top = valid.amax(1, true);
                at::Tensor(both)[0].copy_((valid - top).exp().sum(1));
                at::Tensor(both)[1].copy_(
                    valid.gather(1, on_gpu.clamp_min(0).unsqueeze(1)).squeeze(1));
              }};
      loss[rank] = gpu::linear_cross_entropy(x, part, on_gpu, classes, shard);
      loss[rank].backward();
      dh[rank] = x.grad().to(at::kFloat), dw[rank] = part.grad().to(at::kFloat);
    }
    const at::Tensor x = hidden.clone().set_requires_grad(true);
    const at::Tensor whole = weight.clone().set_requires_grad(true);
    const at::Tensor wanted = nn::linear_cross_entropy(x, whole, on_gpu, classes);
    wanted.backward();
    const double tolerance = type == at::kFloat ? 2e-3 : 3e-2;
    const auto near = [&](const at::Tensor& got, const at::Tensor& want, const char* what) {
      const double scale = want.abs().max().item<double>() + 1e-6;
      EXPECT_LT((got - want).abs().max().item<double>(), tolerance * scale)
          << what << " in " << c10::toString(type);
    };
    near(loss[0], wanted, "loss");
    EXPECT_EQ(loss[0].item<float>(), loss[1].item<float>());
    near(dh[0] + dh[1], x.grad().to(at::kFloat), "gradient of the rows");
    near(at::cat({dw[0], dw[1]}), whole.grad().to(at::kFloat), "gradient of the weight");
  }
}

// Hook with a gradient place: the gradients of two passes accumulate in it, with the same bits as
// without.
struct Hook final : torch::autograd::PostAccumulateGradHook, GradientPlace {
  explicit Hook(at::Tensor p) : param(std::move(p)), place(at::empty_like(param)) {}
  // As in the engine: the sum that autograd computes for several uses is copied to the place.
  void operator()(const at::Tensor&) override {
    taken = false;
    at::Tensor& grad = param.mutable_grad();
    if (!grad.is_alias_of(place)) place.copy_(grad);
    grad = place;
  }
  Place take() override {
    if (taken) return {};
    taken = true;
    const bool add = param.grad().defined();
    if (add) param.mutable_grad().reset();
    ++times;
    return {place, add};
  }
  at::Tensor param, place;
  bool taken = false;
  int times = 0;
};

TEST(GpuOps, GradientsAreWrittenToTheirPlaces) {
  NEEDS_GPU();
  const auto train = [](bool places, int* taken) -> Tensors {
    at::manual_seed(11);
    const auto on = at::device(at::Device(at::kCUDA, 0)).dtype(at::kBFloat16);
    Tensors params;
    for (const std::vector<std::int64_t>& shape :
         std::vector<std::vector<std::int64_t>>{{64}, {64}, {256, 64}, {256}, {64, 256}, {64}}) {
      params.push_back(at::randn(shape, on).mul_(0.2).set_requires_grad(true));
    }
    std::vector<Hook*> hooks;
    for (const at::Tensor& p : params) {
      if (!places) break;
      auto hook = std::make_unique<Hook>(p.detach());
      hook->param = p;
      hooks.push_back(hook.get());
      torch::autograd::impl::set_post_acc_grad_hooks(p, std::move(hook));
    }
    for (int pass = 0; pass < 2; ++pass) {
      const at::Tensor x = at::randn({40, 64}, on);
      const auto [wide, same] = norm_linear(x, {params[0], params[1]}, params[2], {});
      const at::Tensor y = act_linear(Kind::gelu, wide, params[3], params[4], params[5], same);
      // The second weight is used twice: one of the uses finds the place taken.
      (y + nn::linear(gelu(wide, params[3]), params[4], {})).square().sum().backward();
    }
    Tensors out;
    for (std::size_t i = 0; i < params.size(); ++i) {
      out.push_back(params[i].grad().clone());
      if (places) *taken += hooks[i]->times;
      if (places) torch::autograd::impl::set_post_acc_grad_hooks(params[i], nullptr);
    }
    return out;
  };
  int taken = 0;
  const Tensors without = train(false, nullptr), with = train(true, &taken);
  EXPECT_GE(taken, 12);
  for (std::size_t i = 0; i < with.size(); ++i) {
    const double scale = without[i].abs().max().item<double>();
    EXPECT_LT((with[i] - without[i]).abs().max().item<double>(), 0.02 * scale) << i;
  }
}

}  // namespace
}  // namespace tessera::nn
