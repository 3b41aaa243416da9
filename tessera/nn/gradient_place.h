#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::nn {

// [Note: gradient places] Destination of a parameter's gradient, for a backward that can write
// directly to it and so avoid a copy. An engine that keeps gradients in a flat buffer installs one
// of these as the post-accumulate hook of each parameter.
//
// A backward that takes the place writes to it (or adds to it if `add` is set, because it then
// holds the sum of earlier passes), and returns an alias of it to autograd as the gradient.
// Autograd adds any other contributions of the pass and makes the result `.grad`. Until then, a
// place can be taken only once.
class GradientPlace {
 public:
  struct Place {
    at::Tensor to;  // has the parameter's shape and type; undefined: no place, allocate a tensor
    bool add = false;
  };
  virtual ~GradientPlace() = default;
  virtual Place take() = 0;
};

// Returns whether a hook is registered on the gradient of this parameter. Such a hook must see, and
// may change, the gradient of one pass: not the sum with earlier passes in a place, and not a
// deferred one. The parameter must be a leaf that requires a gradient.
inline bool has_gradient_hooks(const at::Tensor& param) {
  if (!torch::autograd::impl::hooks(param).empty()) return true;
  const auto accumulates = torch::autograd::impl::try_get_grad_accumulator(param);
  return accumulates != nullptr &&
         !(accumulates->pre_hooks().empty() && accumulates->post_hooks().empty());
}

// Takes the place of a parameter's gradient, if it has one.
inline GradientPlace::Place take_place(const at::Tensor& param) {
  if (!param.is_leaf()) return {};
  auto* const place =
      dynamic_cast<GradientPlace*>(torch::autograd::impl::post_acc_grad_hooks(param).get());
  if (place == nullptr || has_gradient_hooks(param)) return {};
  return place->take();
}

}  // namespace tessera::nn
