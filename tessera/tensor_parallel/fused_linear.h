#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/nn/operand.h"
#include "tessera/tensor_parallel/adapter.h"
#include "tessera/tensor_parallel/collectives.h"

// Linears on a GPU, on any number of tensor-parallel ranks. Internal.
namespace tessera::tensor_parallel {

// Input of a linear: x, or the norm of x (+ branch), or an activation function of x (+ bias).
struct FusedInput {
  at::Tensor x;
  nn::Operand::Kind kind = nn::Operand::Kind::plain;
  nn::NormWeights norm = {};
  at::Tensor branch = {};  // norm; may be undefined
  at::Tensor bias = {};    // GELU; may be undefined
};
struct FusedWeights {
  at::Tensor w, b;  // this rank's shards; b may be undefined
  std::vector<AdapterUse> adapters = {};
  at::Tensor residual = {};  // row-parallel on one rank: added to the result; may be undefined
};

// [Note: fused linears] One operation runs the norm or activation function, the collective and the
// product with its adapters. It keeps x (or x + branch), not the input of the product ([Note: fused
// layers]), and with sequence parallelism not the gathered sequence either: backward gathers the
// recomputed shard again, while it sends the gradient. saves: x or the sum (shared), 8·N bytes for
// the statistics of a norm (RMSNorm: 4·N), weights (shared), and x · aᵀ of adapters.
//
// Column-parallel: returns {copy_to_region(input) · wᵀ + b, x + branch}. Further readers of x
// should use the second result, which is undefined if the input is not a norm: its gradient is then
// added inside the norm's backward.
std::pair<at::Tensor, at::Tensor> fused_column_linear(const Axis& axis, const FusedInput& input,
                                                      const FusedWeights& weights,
                                                      const std::string& label);
// Row-parallel: returns reduce_from_region(input · wᵀ) + b + residual.
at::Tensor fused_row_linear(const Axis& axis, const FusedInput& input, const FusedWeights& weights,
                            const std::string& label);

}  // namespace tessera::tensor_parallel
