#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace tessera::nn {

// [Note: gradient places] Where the gradient of a parameter is wanted, for a backward that can
// write it there at once, so that nobody copies it. An engine that keeps gradients in a flat buffer
// makes the post-accumulate hook of each parameter one of these.
//
// Whoever takes the place writes to it (or adds, where it says so: then it holds what earlier
// passes left), and returns an alias of it to autograd as the gradient. Autograd adds whatever else
// the pass has for the parameter, and makes it `.grad`. A place is taken once until then.
class GradientPlace {
 public:
  struct Place {
    at::Tensor to;  // of the parameter's shape and type; undefined: there is none, make a tensor
    bool add = false;
  };
  virtual ~GradientPlace() = default;
  virtual Place take() = 0;
};

// Has somebody registered a hook on the gradient of this parameter? It is to see, and may change,
// what one pass gives: neither what a place holds of earlier ones, nor nothing at all. The
// parameter is a leaf that wants a gradient.
inline bool has_gradient_hooks(const at::Tensor& param) {
  if (!torch::autograd::impl::hooks(param).empty()) return true;
  const auto accumulates = torch::autograd::impl::try_get_grad_accumulator(param);
  return accumulates != nullptr &&
         !(accumulates->pre_hooks().empty() && accumulates->post_hooks().empty());
}

// The place of a parameter's gradient, if it has one.
inline GradientPlace::Place take_place(const at::Tensor& param) {
  if (!param.is_leaf()) return {};
  auto* const place =
      dynamic_cast<GradientPlace*>(torch::autograd::impl::post_acc_grad_hooks(param).get());
  if (place == nullptr || has_gradient_hooks(param)) return {};
  return place->take();
}

}  // namespace tessera::nn
