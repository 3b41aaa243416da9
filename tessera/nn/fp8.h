// The three products of a linear in fp8. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::nn {

// [Note: fp8 linears] A linear in fp8 rounds its input, its weight and the gradient of its result
// to 8 bits ([Note: fp8] in kernels/cuda/fp8.h) before each product; sums, bias and results keep
// their types. Tensor cores read both matrices of an fp8 product along the summed dimension, so the
// backward products need transposed copies, which the pass that rounds also writes. Everything that
// is saved for backward is saved as without fp8, and rounded again; only the largest magnitudes are
// kept. On the CPU the same rounding is done with ATen, as a reference for tests.

// Largest magnitudes of the input and of the weight, fp32 [1] each.
struct Fp8Scales {
  at::Tensor x, w;
};

// Throws UsageError with the reason if this GPU has no products in fp8.
void require_fp8();
// Throws UsageError, naming the linear `label`, if fp8 is not possible for this weight.
void check_fp8(const at::Tensor& w, const std::string& label);

// Computes out = x [N, in] · w [out, in]ᵀ + bias + residual, as product_into() does in gpu.h.
Fp8Scales fp8_product_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w,
                           const at::Tensor& bias, const at::Tensor& residual);

// Gradient of the result of a linear, [N, out], in fp8.
class Fp8Gradient {
 public:
  // Rounds it for the products that follow.
  Fp8Gradient(const at::Tensor& dy, bool for_input, bool for_weight);
  // Returns dy · w.
  at::Tensor input_gradient(const at::Tensor& w, const Fp8Scales& scales) const;
  // Computes to = dyᵀ · x (+ to).
  void weight_gradient(const at::Tensor& x, const Fp8Scales& scales, const at::Tensor& to,
                       bool add) const;

 private:
  at::TensorOptions options_;
  at::Tensor rows_, transposed_, factor_;
};

}  // namespace tessera::nn
