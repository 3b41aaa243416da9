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

// Can this layer? Otherwise it enters, multiplies and leaves one after the other.
bool overlaps(const Axis& axis, const at::Tensor& x, const at::Tensor& w);

// x enters and is multiplied. A selective checkpoint keeps both results.
struct Entered {
  at::Tensor x;        // as it entered, [N, in]
  at::Tensor product;  // x · wᵀ + b, [N, out]; b may be undefined
};
Entered enter_times(const Axis& axis, const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                    const std::string& label, bool unrounded = false);
// The gradient of an x that entered is on its way back.
Pending start_backward_of_enter(const Axis& axis, const at::Tensor& dx, const std::string& label);

// x · wᵀ + b is made and leaves. b only where it is to be added.
at::Tensor times_leave(const Axis& axis, const at::Tensor& x, const at::Tensor& w,
                       const at::Tensor& b, const std::string& label);
// Backward of that, sequence-parallel: the gradient of what left, gathered, and dx if it is wanted.
struct LeftGradients {
  at::Tensor dy;  // [N, out]
  at::Tensor dx;  // [N, in]
};
LeftGradients gather_times(const Axis& axis, const at::Tensor& part, const at::Tensor& w,
                           bool want_x, const std::string& label);

}  // namespace tessera::tensor_parallel
