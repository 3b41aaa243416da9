#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "tessera/nn/gradient_place.h"
#include "tessera/nn/matmul.h"

namespace tessera::nn {

// Weight gradients that backward leaves for later, so that the gradients of inputs, for which
// others may be waiting, come first.
//
// [Note: deferral] A linear (linear, linear_gelu and linear_cross_entropy of ops.h, and those of
// tensor_parallel/) that runs forward inside a Scope remembers its collection. Its backward then
// puts the product for the weight there instead of computing it, and autograd hears of no gradient
// for that weight. run() does what autograd would have done: it adds the gradient to `.grad`, in
// place where there is one, and calls the parameter's post-accumulate hook. A recomputed segment
// takes the collection along into its recomputation. Weights that are no leaves or have hooks of
// their own, biases, and all other layers get their gradients in backward as ever.
class DeferredGradients : public torch::CustomClassHolder {
 public:
  // param.grad += gradient(), later.
  void push(const at::Tensor& param, std::function<at::Tensor()> gradient);

  // Computes and adds what was put here, in that order, and forgets it.
  void run();

  std::int64_t pushed() const;  // since the beginning

  // This thread's forward passes use the collection while the scope lives; null for none.
  class Scope {
   public:
    explicit Scope(c10::intrusive_ptr<DeferredGradients> collection);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    c10::intrusive_ptr<DeferredGradients> previous_;
  };
  static c10::intrusive_ptr<DeferredGradients> current();

 private:
  struct Item {
    at::Tensor param;
    std::function<at::Tensor()> gradient;
  };
  mutable std::mutex mutex_;  // backward may run on a thread of its own
  std::vector<Item> items_;
  std::int64_t pushed_ = 0;
};

// Can the gradient of this parameter be put off?
inline bool is_deferrable(const at::Tensor& param) {
  return param.is_leaf() && param.requires_grad() && !has_gradient_hooks(param);
}

// For the forward and the backward of a function that can defer: the collection of the scope it ran
// in, or null.
inline void remember_deferral(torch::autograd::AutogradContext* ctx) {
  if (auto now = DeferredGradients::current()) {
    ctx->saved_data["deferral"] = c10::IValue::make_capsule(std::move(now));
  }
}
inline DeferredGradients* deferral_of(torch::autograd::AutogradContext* ctx) {
  const auto found = ctx->saved_data.find("deferral");
  if (found == ctx->saved_data.end()) return nullptr;
  return static_cast<DeferredGradients*>(found->second.toCapsule().get());
}

// The gradients of x · wᵀ for a backward whose first two tensors were x and w; that of the weight
// is left for later where the forward pass asked for it.
ProductGradients product_gradients(torch::autograd::AutogradContext* ctx, const at::Tensor& dy,
                                   const at::Tensor& x, const at::Tensor& w);

// That of the weight alone: undefined if it is not wanted, or is left for later.
at::Tensor weight_gradient(torch::autograd::AutogradContext* ctx, const at::Tensor& dy,
                           const at::Tensor& x, const at::Tensor& w);

}  // namespace tessera::nn
