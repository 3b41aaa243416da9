#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "tessera/tensor_parallel/collectives.h"

// Overlap of products and collectives, for the functions of layers.h. Internal.
namespace tessera::tensor_parallel {

// [Note: overlap] With Axis::overlap, a collective overlaps with the computation of its input or on
// its output, where possible:
//   column-parallel  forward, sequence-parallel: the rank's own rows are multiplied while the
//   others
//                    arrive. Backward: dx is sent while dw and db are computed.
//   row-parallel     forward: the product is computed in a few pieces, each of which is sent while
//   the
//                    next is computed. Backward, sequence-parallel: dx of the rank's own rows is
//                    computed while the gradients of the other rows arrive.
// The head of vocab_parallel_cross_entropy is a column-parallel linear. The bytes sent are the same
// (pieces are multiples of the number of ranks, so nothing is padded), and so is the memory kept
// for backward. Products are split by rows only. If the weight gradient is deferred, only db
// remains to be computed while dx is sent: pipelines that defer have other work for that time.

inline at::Tensor matrix(const at::Tensor& x) { return x.contiguous().view({-1, x.size(-1)}); }

// Returns whether this layer can overlap. Otherwise it enters the region, multiplies and reduces
// one after the other.
bool overlaps(const Axis& axis, const at::Tensor& x, const at::Tensor& w);

// copy_to_region(x) and its product. Selective recomputation keeps both results.
struct Gathered {
  at::Tensor x;        // inside the region, [N, in]
  at::Tensor product;  // x · wᵀ + b, [N, out]; b may be undefined
};
Gathered gather_matmul(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                       const at::Tensor& b, const std::string& label, bool unrounded = false);
// Starts the backward of copy_to_region.
Pending start_input_gradient(const Axis& axis, const at::Tensor& dx, const std::string& label);

// Returns reduce_from_region(x · wᵀ + b). b is defined only on the rank that adds it.
at::Tensor matmul_reduce(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                         const at::Tensor& b, const std::string& label);
// Backward of matmul_reduce, sequence-parallel: the gathered gradient of the result, and dx if
// requested.
struct RowGradients {
  at::Tensor dy;  // [N, out]
  at::Tensor dx;  // [N, in]
};
RowGradients gather_matmul_backward(const Axis& axis, const at::Tensor& part, const at::Tensor& w,
                                    bool want_x, const std::string& label);

}  // namespace tessera::tensor_parallel
