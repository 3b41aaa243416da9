// Precision of fp32 products on a GPU. Skipped without a GPU.
#include "tessera/nn/matmul_precision.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include "tessera/nn/ops.h"

namespace tessera::nn {
namespace {

double relative_error(const at::Tensor& got, const at::Tensor& exact) {
  return ((got.to(at::kDouble) - exact).norm() / exact.norm()).item<double>();
}

// The scope sets the precision of Tessera's products and of ATen's, and restores both.
TEST(GpuPrecision, HighUsesTf32AndHighestIsTheDefault) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  const auto options = at::device(at::kCUDA).dtype(at::kFloat);
  const at::Tensor x = at::randn({512, 1024}, options), w = at::randn({768, 1024}, options);
  const at::Tensor b = at::randn({768}, options);
  const at::Tensor exact = at::addmm(b.to(at::kDouble), x.to(at::kDouble), w.to(at::kDouble).t());
  struct Both {
    double tessera, aten;
  };
  const auto errors = [&] {
    return Both{relative_error(linear(x, w, b), exact),
                relative_error(at::addmm(b, x, w.t()), exact)};
  };
  const auto expect_fp32 = [&] {
    const Both error = errors();
    EXPECT_LT(error.tessera, 1e-5);
    EXPECT_LT(error.aten, 1e-5);
    EXPECT_FALSE(allows_tf32());
  };
  expect_fp32();
  {
    const MatmulPrecisionScope highest(MatmulPrecision::highest);
    expect_fp32();
  }
  {
    const MatmulPrecisionScope high(MatmulPrecision::high), again(MatmulPrecision::high);
    const Both error = errors();
    for (const double each : {error.tessera, error.aten}) {
      EXPECT_LT(each, 1e-3);
      EXPECT_GT(each, 2e-5);  // more than rounding in fp32: TF32 is used
    }
    EXPECT_TRUE(allows_tf32());
  }
  expect_fp32();
}

}  // namespace
}  // namespace tessera::nn
