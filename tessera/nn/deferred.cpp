#include "tessera/nn/deferred.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace tessera::nn {
namespace {

thread_local c10::intrusive_ptr<DeferredGradients> collecting;

}  // namespace

DeferredGradients::Scope::Scope(c10::intrusive_ptr<DeferredGradients> collection)
    : previous_(std::exchange(collecting, std::move(collection))) {}
DeferredGradients::Scope::~Scope() { collecting = std::move(previous_); }

c10::intrusive_ptr<DeferredGradients> DeferredGradients::current() { return collecting; }

void DeferredGradients::push(const at::Tensor& param, std::function<at::Tensor()> gradient) {
  const std::lock_guard lock(mutex_);
  items_.push_back({param, std::move(gradient)});
  ++pushed_;
}

void DeferredGradients::run() {
  std::vector<Item> items;
  {
    const std::lock_guard lock(mutex_);
    items.swap(items_);
  }
  const at::NoGradGuard no_grad;
  for (Item& item : items) {
    at::Tensor value = item.gradient();
    at::Tensor& grad = item.param.mutable_grad();
    if (grad.defined()) {
      grad.add_(value);
    } else {
      grad = std::move(value);
    }
    const auto& hook = torch::autograd::impl::post_acc_grad_hooks(item.param);
    if (hook != nullptr) (*hook)(item.param);
    item = {};  // releases the activations that it holds
  }
}

std::int64_t DeferredGradients::pushed() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

}  // namespace tessera::nn
