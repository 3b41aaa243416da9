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

// Collection of weight gradients that backward defers, so that the gradients of inputs, which other
// ranks may be waiting for, are computed first.
//
// [Note: deferral] A linear (linear, linear_gelu and linear_cross_entropy of ops.h, and those of
// tensor_parallel/) whose forward runs inside a Scope saves a reference to the scope's collection.
// Its backward then adds the product for the weight to the collection instead of computing it, and
// returns no gradient for that weight to autograd. run() does what autograd would have done: it
// adds the gradient to `.grad`, in place if there is one, and calls the parameter's post-accumulate
// hook. A recomputed segment uses the same collection in its recomputation. Weights that are not
// leaves or have their own hooks, biases, and all other layers get their gradients in backward as
// usual.
class DeferredGradients : public torch::CustomClassHolder {
 public:
  // Defers param.grad += gradient() until run().
  void push(const at::Tensor& param, std::function<at::Tensor()> gradient);

  // Computes and adds the deferred gradients in the order of push(), then drops them.
  void run();

  std::int64_t pushed() const;  // total number of calls of push()

  // Makes this thread's forward passes use the collection while the scope lives; null for none.
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
  mutable std::mutex mutex_;  // backward may run on another thread
  std::vector<Item> items_;
  std::int64_t pushed_ = 0;
};

// Returns whether the gradient of this parameter can be deferred.
inline bool is_deferrable(const at::Tensor& param) {
  return param.is_leaf() && param.requires_grad() && !has_gradient_hooks(param);
}

// Save and restore, in the forward and backward of a function that can defer, the collection of the
// scope that forward ran in, or null.
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

// Returns the gradients of x · wᵀ, for a backward whose first two inputs were x and w. The gradient
// of the weight is deferred if forward ran in a scope.
ProductGradients product_gradients(torch::autograd::AutogradContext* ctx, const at::Tensor& dy,
                                   const at::Tensor& x, const at::Tensor& w);

// Returns only the gradient of the weight. Undefined if it is not needed or is deferred.
at::Tensor weight_gradient(torch::autograd::AutogradContext* ctx, const at::Tensor& dy,
                           const at::Tensor& x, const at::Tensor& w);

}  // namespace tessera::nn
