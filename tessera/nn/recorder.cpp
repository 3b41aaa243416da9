#include "tessera/nn/recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/alias.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::nn {
namespace {

// Reserved by torch, unused by it in C++ programs, and directly below autograd.
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

thread_local Recorder* active = nullptr;

bool is_product(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 10> kProducts = {
      "aten::mm",
      "aten::addmm",
      "aten::bmm",
      "aten::baddbmm",
      "aten::convolution",
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      "aten::_scaled_dot_product_flash_attention",
      "aten::_scaled_dot_product_efficient_attention",
      "aten::_scaled_dot_product_cudnn_attention",
      "aten::_addmm_activation"};
  const c10::OperatorName& name = op.operator_name();
  return name.overload_name.empty() &&
         std::find(kProducts.begin(), kProducts.end(), name.name) != kProducts.end();
}

void pass_on(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

void protect_arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  const std::size_t arguments = schema.arguments().size();
  for (std::size_t i = 0; i < arguments; ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    const c10::IValue& value = stack[stack.size() - arguments + i];
    if (alias == nullptr || !alias->isWrite()) continue;
    if (value.isTensor()) active->protect(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) active->protect(tensor);
    }
  }
}

// What the fallback does to every operator that a selective segment calls.
void observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  if (active == nullptr) return pass_on(op, keys, stack);
  const std::size_t arguments = op.schema().arguments().size();
  if (!is_product(op)) {
    if (op.schema().is_mutable()) protect_arguments(op.schema(), *stack);
    return pass_on(op, keys, stack);
  }
  bool computed = false;
  const auto compute = [&] {
    pass_on(op, keys, stack);
    computed = true;
    std::vector<at::Tensor> tensors;
    for (const c10::IValue& value : *stack) {
      if (value.isTensor()) tensors.push_back(value.toTensor());
    }
    return tensors;
  };
  // Only the operator's own values are on the stack of its call.
  torch::jit::Stack own(stack->end() - static_cast<std::ptrdiff_t>(arguments), stack->end());
  stack->erase(stack->end() - static_cast<std::ptrdiff_t>(arguments), stack->end());
  std::swap(own, *stack);
  const std::vector<at::Tensor> tensors = active->results(compute);
  std::swap(own, *stack);
  if (computed) {
    stack->insert(stack->end(), own.begin(), own.end());
    return;
  }
  std::size_t next = 0;
  for (const c10::Argument& result : op.schema().returns()) {
    const bool tensor = result.type()->isSubtypeOf(*c10::TensorType::get());
    if (tensor) {
      stack->emplace_back(tensors.at(next++));
    } else {
      stack->emplace_back(c10::SymInt(0));  // lengths that only nested tensors use
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&observe>());
}

namespace {

// While it lives, this thread is in no selective segment.
struct Outside {
  Recorder* const outer = std::exchange(active, nullptr);
  ~Outside() { active = outer; }
};

}  // namespace

Recorder* Recorder::current() { return active; }

void Recorder::run(const std::function<void()>& f) {
  const c10::impl::IncludeDispatchKeyGuard on(kKey);
  Recorder* const outer = std::exchange(active, this);
  struct Restore {
    Recorder* outer;
    ~Restore() { active = outer; }
  } restore{outer};
  next_ = 0;
  f();
}

void Recorder::protect(const at::Tensor& tensor) {
  if (replaying_ || !tensor.defined() || !tensor.has_storage()) return;
  for (std::vector<Kept>& list : kept_) {
    for (Kept& kept : list) {
      if (!kept.value.defined() || !kept.value.is_alias_of(tensor)) continue;
      kept.value = kept.value.clone();
      kept.version = kept.value.unsafeGetTensorImpl()->version_counter().current_version();
    }
  }
}

void Recorder::watch(const std::vector<at::Tensor>& outputs) {
  for (std::vector<Kept>& list : kept_) {
    for (Kept& kept : list) {
      for (const at::Tensor& output : outputs) {
        if (!kept.value.defined() || !output.defined() || !kept.value.is_alias_of(output)) continue;
        const auto& counter = output.unsafeGetTensorImpl()->version_counter();
        kept.value.unsafeGetTensorImpl()->set_version_counter(counter);
        kept.version = counter.current_version();
      }
    }
  }
}

std::vector<at::Tensor> Recorder::results(const std::function<std::vector<at::Tensor>()>& compute) {
  if (!replaying_) {
    std::vector<at::Tensor> tensors;
    {
      // Products inside it are steps on the way: only what it returns is kept.
      const Outside outside;
      tensors = compute();
    }
    std::vector<Kept>& list = kept_.emplace_back();
    for (const at::Tensor& tensor : tensors) {
      // An alias that learns of changes in place, but has no place in any graph.
      at::Tensor alias = tensor.defined() ? at::alias(tensor) : tensor;
      if (!tensor.defined()) {
        list.push_back({});
        continue;
      }
      alias.unsafeGetTensorImpl()->set_version_counter(
          tensor.unsafeGetTensorImpl()->version_counter());
      list.push_back({alias, tensor.unsafeGetTensorImpl()->version_counter().current_version()});
    }
    return tensors;
  }
  if (next_ >= kept_.size()) {
    throw UsageError(
        str("selective checkpointing: the recomputation makes more matrix products "
            "than the first run (",
            kept_.size(), "); a checkpointed function must compute the same twice"));
  }
  std::vector<at::Tensor> tensors;
  for (Kept& kept : kept_[next_]) {
    if (kept.value.defined() &&
        kept.value.unsafeGetTensorImpl()->version_counter().current_version() != kept.version) {
      throw UsageError(
          "selective checkpointing: the result of a matrix product was changed in place, so it "
          "cannot be used a second time. Use an operation that is not in place, or full "
          "checkpointing");
    }
    tensors.push_back(std::move(kept.value));
  }
  ++next_;
  return tensors;
}

}  // namespace tessera::nn
