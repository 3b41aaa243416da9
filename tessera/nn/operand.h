// Inputs of products that backward recomputes instead of keeping. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "tessera/nn/ops.h"

namespace tessera::nn {

// [Note: fused layers] A norm or an activation function and the linear after it are one operation,
// which does not keep the value between the two: it is cheap, so backward recomputes it, in the
// same pass over memory that computes the gradient of the tensor that is kept. A block of a
// transformer then keeps a third less, and no product runs twice. Operand is the first part of such
// an operation; tensor_parallel/fused_linear.h has the whole.
struct Operand {
  enum class Kind : std::uint8_t { plain, norm, gelu, swiglu };

  Kind kind = Kind::plain;
  at::Tensor x;             // [N, columns]; of a norm, the sum of x and the branch
  at::Tensor weight, bias;  // of a norm; RMSNorm has no bias. GELU adds `bias`, if defined, to x.
  at::Tensor mean, rstd;    // of a norm, fp32 [N]; RMSNorm has no mean
  double eps = 0;

  // Returns the input of the product: x, its norm, or its activation.
  at::Tensor value() const;

  struct Gradients {
    at::Tensor dx, weight, bias;
    // Statistics of dx if the same pass computes them: [Note: known statistics].
    at::Tensor sums, largest;
  };
  // Returns the gradients, given that of the value. `past`: another gradient of x, to be added;
  // norm only, may be undefined. `overwrite`: dy may be overwritten. If `value` is defined, value()
  // is written to it.
  Gradients backward(const at::Tensor& dy, const at::Tensor& past, bool overwrite,
                     const at::Tensor& value = {}) const;
};

// Returns the norm of x, or of x + branch if there is one, and its value. Both are [N, columns].
std::pair<Operand, at::Tensor> norm_operand(const at::Tensor& x, const at::Tensor& branch,
                                            const NormWeights& weights);

// Tests call it with true to run fused layers on the CPU too, in ATen's operations. Every thread
// sees the change.
void fuse_on_cpu(bool on);

}  // namespace tessera::nn
