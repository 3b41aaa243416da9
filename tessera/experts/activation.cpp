#include "tessera/experts/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "tessera/experts/gpu.h"

namespace tessera::experts {
namespace {

at::Tensor to_wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

at::Tensor value_of(const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh: return at::gelu(x, "tanh");
    case Activation::gelu: return at::gelu(x);
    case Activation::relu: return at::relu(x);
    case Activation::silu: return at::silu(x);
  }
  return {};
}

at::Tensor gradient_of(const at::Tensor& dy, const at::Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh: return at::gelu_backward(dy, x, "tanh");
    case Activation::gelu: return at::gelu_backward(dy, x);
    case Activation::relu: return at::threshold_backward(dy, x, 0);
    case Activation::silu: return at::silu_backward(dy, x);
  }
  return {};
}

}  // namespace

at::Tensor activate(const at::Tensor& h, const at::Tensor& weights, const ActivationKind& kind) {
  if (gpu::takes(h)) return gpu::activate(h, weights, kind);
  return activate_by_operations(h, weights, kind);
}

at::Tensor activate_by_operations(const at::Tensor& h, const at::Tensor& weights,
                                  const ActivationKind& kind) {
  const at::Tensor w = weights.unsqueeze(1);
  if (!kind.gated) return (value_of(to_wide(h), kind.activation) * w).to(h.scalar_type());
  const std::int64_t width = h.size(1) / 2;
  const at::Tensor gate = to_wide(h.narrow(1, 0, width)), value = h.narrow(1, width, width);
  return (value_of(gate, kind.activation) * value).mul_(w).to(h.scalar_type());
}

ActivationGradients activate_backward(const at::Tensor& h, const at::Tensor& weights,
                                      const at::Tensor& da, const ActivationKind& kind) {
  if (gpu::takes(h) && gpu::takes(da)) return gpu::activate_backward(h, weights, da, kind);
  return activate_backward_by_operations(h, weights, da, kind);
}

ActivationGradients activate_backward_by_operations(const at::Tensor& h, const at::Tensor& weights,
                                                    const at::Tensor& da,
                                                    const ActivationKind& kind) {
  const at::Tensor w = weights.unsqueeze(1), d = to_wide(da);
  ActivationGradients result;
  if (!kind.gated) {
    const at::Tensor x = to_wide(h), y = value_of(x, kind.activation);
    result.value = (y * w).to(h.scalar_type());
    result.dweights = (d * y).sum(1).to(at::kFloat);
    result.dh = gradient_of(d * w, x, kind.activation).to(h.scalar_type());
    return result;
  }
  const std::int64_t width = h.size(1) / 2;
  const at::Tensor gate = to_wide(h.narrow(1, 0, width)),
                   value = to_wide(h.narrow(1, width, width));
  const at::Tensor y = value_of(gate, kind.activation);
  const at::Tensor product = y * value;
  result.value = (product * w).to(h.scalar_type());
  result.dweights = (d * product).sum(1).to(at::kFloat);
  const at::Tensor dy = d * w;
  result.dh = at::empty(h.sizes(), h.options());
  result.dh.narrow(1, 0, width).copy_(gradient_of(dy * value, gate, kind.activation));
  result.dh.narrow(1, width, width).copy_(dy * y);
  return result;
}

}  // namespace tessera::experts
