#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "tessera/tensor_parallel/collectives.h"

// Products and collectives at the same time, for the functions of layers.h. Internal.
namespace tessera::tensor_parallel {

// [Note: overlap] With Axis::overlap, what a collective brings or takes away is worked on while it
// runs, wherever there is something to work on:
//   column-parallel  forward, sequence-parallel: the rows this rank has itself are multiplied while
//                    the others arrive. Backward: dx travels while dw and db are computed.
//   row-parallel     forward: the product is made in a few pieces, each of which travels while the
//                    next is made. Backward, sequence-parallel: dx of the rows this rank has itself
//                    while the gradients of the others arrive.
// The head of vocab_parallel_cross_entropy is a column-parallel linear. The bytes are the same (the
// pieces divide by the ranks, so nothing is padded), and so is what is kept for backward. Products
// are cut by rows only. Where the weight gradient is deferred nothing but db is left to do while dx
// travels: pipelines that defer have other work for that time.

inline at::Tensor matrix(const at::Tensor& x) { return x.contiguous().view({-1, x.size(-1)}); }

// Can this layer? Otherwise it copies in, multiplies and reduces one after the other.
bool overlaps(const Axis& axis, const at::Tensor& x, const at::Tensor& w);

// copy_to_region(x) and its product. Selective recomputation keeps both results.
struct Gathered {
  at::Tensor x;        // in the region, [N, in]
  at::Tensor product;  // x · wᵀ + b, [N, out]; b may be undefined
};
Gathered gather_matmul(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                       const at::Tensor& b, const std::string& label, bool unrounded = false);
// Backward of copy_to_region, begun.
Pending start_input_gradient(const Axis& axis, const at::Tensor& dx, const std::string& label);

// reduce_from_region(x · wᵀ + b). b only where it is to be added.
at::Tensor matmul_reduce(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                         const at::Tensor& b, const std::string& label);
// Backward of that, sequence-parallel: the gradient of the result, gathered, and dx if it is
// wanted.
struct RowGradients {
  at::Tensor dy;  // [N, out]
  at::Tensor dx;  // [N, in]
};
RowGradients gather_matmul_backward(const Axis& axis, const at::Tensor& part, const at::Tensor& w,
                                    bool want_x, const std::string& label);

}  // namespace tessera::tensor_parallel
