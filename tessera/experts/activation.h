// Activation functions of experts with the weights of the rows. Internal.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/core/model_shape.h"

namespace tessera::experts {

struct ActivationKind {
  bool gated = true;
  Activation activation = Activation::silu;
};

// Returns act(h) · weight of each row, in the type of h: h [n, 2F] with a gate (act(gate) · value),
// otherwise [n, F]. weights: fp32 [n].
at::Tensor activate(const at::Tensor& h, const at::Tensor& weights, const ActivationKind& kind);

struct ActivationGradients {
  at::Tensor value;     // activate() again
  at::Tensor dh;        // [n, columns of h]
  at::Tensor dweights;  // fp32 [n]
};
// Returns the gradients, given that of the result [n, F], which may be replaced by `value`.
ActivationGradients activate_backward(const at::Tensor& h, const at::Tensor& weights,
                                      const at::Tensor& da, const ActivationKind& kind);

// Both as operations of ATen, for all devices.
at::Tensor activate_by_operations(const at::Tensor& h, const at::Tensor& weights,
                                  const ActivationKind& kind);
ActivationGradients activate_backward_by_operations(const at::Tensor& h, const at::Tensor& weights,
                                                    const at::Tensor& da,
                                                    const ActivationKind& kind);

}  // namespace tessera::experts
