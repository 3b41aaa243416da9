// Products of linears in fp8: on the CPU against fp32, on a GPU against the CPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <string>

#include "tessera/core/errors.h"
#include "tessera/kernels/cuda/gemm.h"
#include "tessera/nn/fp8.h"
#include "tessera/nn/gpu.h"

namespace tessera::nn {
namespace {

struct Results {
  at::Tensor y, dx, dw, added;
};

struct Inputs {
  at::Tensor x, w, b, residual, dy, before;

  Inputs to(c10::Device device, at::ScalarType type) const {
    const auto move = [&](const at::Tensor& t) { return t.to(type).to(device); };
    return {move(x), move(w), move(b), move(residual), move(dy), move(before)};
  }
};

Inputs random_inputs(std::int64_t rows, std::int64_t in, std::int64_t out) {
  at::manual_seed(11);
  return {at::randn({rows, in}),  at::randn({out, in}) * 0.02,   at::randn({out}) * 0.1,
          at::randn({rows, out}), at::randn({rows, out}) * 1e-4, at::randn({out, in}) * 1e-2};
}

Results in_fp8(const Inputs& in) {
  Results r;
  r.y = at::empty_like(in.residual);
  const Fp8Scales scales = fp8_product_into(r.y, in.x, in.w, in.b, in.residual);
  const Fp8Gradient dy(in.dy, true, true);
  r.dx = dy.input_gradient(in.w, scales);
  r.dw = at::empty_like(in.w);
  dy.weight_gradient(in.x, scales, r.dw, false);
  r.added = in.before.clone();
  dy.weight_gradient(in.x, scales, r.added, true);
  return r;
}

Results exactly(const Inputs& in) {
  const at::Tensor dw = at::mm(in.dy.t(), in.x);
  return {at::addmm(in.b, in.x, in.w.t()) + in.residual, at::mm(in.dy, in.w), dw, in.before + dw};
}

double difference(const at::Tensor& got, const at::Tensor& wanted) {
  const at::Tensor a = got.cpu().to(at::kDouble), b = wanted.cpu().to(at::kDouble);
  return ((a - b).norm() / b.norm()).item<double>();
}

// Two mantissas of 3 bits, or of 2 and 3 bits, with random errors.
void expect_fp8_rounding(const Results& got, const Results& exact) {
  const auto between = [](double error, double low, double high, const char* what) {
    EXPECT_GT(error, low) << what << ": not rounded to fp8";
    EXPECT_LT(error, high) << what;
  };
  between(difference(got.y, exact.y), 2e-3, 0.05, "y");
  between(difference(got.dx, exact.dx), 2e-2, 0.08, "dx");
  between(difference(got.dw, exact.dw), 2e-2, 0.08, "dw");
}

TEST(Fp8, ReferenceIsFp32WithRoundedInputs) {
  for (const std::int64_t rows : {16, 33, 128}) {
    const Inputs in = random_inputs(rows, 64, 96);
    const Results got = in_fp8(in), exact = exactly(in);
    expect_fp8_rounding(got, exact);
    EXPECT_LT(difference(got.added - in.before, got.dw), 1e-5);
    // Numbers that fp8 represents are not changed.
    Inputs whole = in;
    for (at::Tensor* t : {&whole.x, &whole.w, &whole.dy}) {
      *t = at::randint(-3, 4, t->sizes()).to(at::kFloat) * (t == &whole.w ? 0.125 : 1.0);
      t->flatten()[0] = t == &whole.w ? 0.875 : 7.0;  // the factor is then a power of two
    }
    const Results same = in_fp8(whole), wanted = exactly(whole);
    EXPECT_LT(difference(same.y, wanted.y), 1e-6);
    EXPECT_LT(difference(same.dx, wanted.dx), 1e-6);
    EXPECT_LT(difference(same.dw, wanted.dw), 1e-6);
  }
}

TEST(Fp8, ErrorsOfDimensionsNameTheLinear) {
  try {
    check_fp8(at::zeros({48, 24}), "layer 3, fc");
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    for (const char* part : {"layer 3, fc", "[48, 24]", "multiples of 16", "--precision layout"}) {
      EXPECT_NE(text.find(part), std::string::npos) << text;
    }
  }
  EXPECT_NO_THROW(check_fp8(at::zeros({48, 32}), "fc"));
}

TEST(Fp8, GpuEqualsReference) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "skipped: no CUDA device";
  if (const char* problem = kernels::cuda::fp8_problem()) GTEST_SKIP() << "skipped: " << problem;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const std::int64_t rows : {16, 200, 1027}) {
      const Inputs cpu = random_inputs(rows, 1600, 512).to(at::kCPU, type);
      const Results wanted = in_fp8(cpu), got = in_fp8(cpu.to(at::kCUDA, type));
      const double rounding = type == at::kHalf ? 1e-3 : 4e-3;
      EXPECT_LT(difference(got.y, wanted.y), rounding + 2e-3);  // fast sums
      EXPECT_LT(difference(got.dx, wanted.dx), rounding + 2e-3);
      EXPECT_LT(difference(got.dw, wanted.dw), rounding);
      EXPECT_LT(difference(got.added, wanted.added), rounding);
    }
  }
}

}  // namespace
}  // namespace tessera::nn
