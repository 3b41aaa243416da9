// The update rules of kernels/rules.h in ATen, for devices and types without a kernel. They change
// the value and the states in place; the gradient is already scaled.
#pragma once

#include <ATen/core/Tensor.h>

#include <cmath>

#include "tessera/kernels/rules.h"

namespace tessera::zero {

inline void formula(const rules::AdamW& how, const rules::Step& step, const at::Tensor& value,
                    const at::Tensor& grad, const at::Tensor& m, const at::Tensor& v) {
  const double bias1 = 1 - std::pow(how.beta1, static_cast<double>(step.count));
  const double bias2 = 1 - std::pow(how.beta2, static_cast<double>(step.count));
  value.mul_(1 - step.lr * step.weight_decay);
  m.mul_(how.beta1).add_(grad, 1 - how.beta1);
  v.mul_(how.beta2).addcmul_(grad, grad, 1 - how.beta2);
  value.addcdiv_(m, v.sqrt().div_(std::sqrt(bias2)).add_(how.eps), -step.lr / bias1);
}

inline void formula(const rules::SGD& how, const rules::Step& step, const at::Tensor& value,
                    const at::Tensor& grad, const at::Tensor& velocity, const at::Tensor&) {
  at::Tensor move = grad.add(value, step.weight_decay);
  if (how.momentum != 0) {
    velocity.mul_(how.momentum).add_(move);
    move = how.nesterov ? move.add(velocity, how.momentum) : velocity;
  }
  value.sub_(move, step.lr);
}

inline void formula(const rules::Lion& how, const rules::Step& step, const at::Tensor& value,
                    const at::Tensor& grad, const at::Tensor& m, const at::Tensor&) {
  value.mul_(1 - step.lr * step.weight_decay);
  value.sub_(m.mul(how.beta1).add_(grad, 1 - how.beta1).sign_(), step.lr);
  m.mul_(how.beta2).add_(grad, 1 - how.beta2);
}

inline void formula(const rules::Momentum& how, const rules::Step&, const at::Tensor& direction,
                    const at::Tensor& grad, const at::Tensor& m, const at::Tensor&) {
  m.mul_(how.momentum).add_(grad, 1 - how.momentum);
  direction.copy_(m);
  if (how.nesterov) direction.mul_(how.momentum).add_(grad, 1 - how.momentum);
}

inline void formula(const rules::Descent& how, const rules::Step& step, const at::Tensor& value,
                    const at::Tensor& direction, const at::Tensor&, const at::Tensor&) {
  value.mul_(1 - step.lr * step.weight_decay).sub_(direction, step.lr * how.scale);
}

}  // namespace tessera::zero
