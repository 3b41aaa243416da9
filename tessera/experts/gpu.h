// Operations of experts by Tessera's CUDA kernels. Internal. takes() returns whether they run for a
// tensor; the same operations by ATen are in dispatch.h, activation.h and router_operations.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/experts/activation.h"
#include "tessera/experts/dispatch.h"
#include "tessera/experts/router.h"

namespace tessera::experts::gpu {

// Returns true if the kernels support the tensor: a matrix of rows, or integers such as the numbers
// of experts.
bool takes(const at::Tensor& tensor);

// dispatch.h. At most kernels::cuda::kMaxExperts experts.
SortedPairs sort_pairs(const at::Tensor& experts, std::int64_t count);
at::Tensor order_of(const at::Tensor& slots, std::int64_t rows);
at::Tensor combine(const at::Tensor& rows, const at::Tensor& slots);
at::Tensor rows_of(const at::Tensor& x, const at::Tensor& source);

// activation.h
at::Tensor activate(const at::Tensor& h, const at::Tensor& weights, const ActivationKind& kind);
// `da` is replaced by ActivationGradients::value.
ActivationGradients activate_backward(const at::Tensor& h, const at::Tensor& weights,
                                      const at::Tensor& da, const ActivationKind& kind);

}  // namespace tessera::experts::gpu

namespace tessera::experts {

extern const RouterSteps kRouterKernels;  // for at most kernels::cuda::kMaxExperts experts

}  // namespace tessera::experts
