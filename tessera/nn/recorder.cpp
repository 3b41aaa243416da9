#include "tessera/nn/recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::nn {
namespace {

// [Note: dispatch keys] Torch 2.11 to 2.13 register no kernel and no fallback for the observing
// key; only a test program of torch does. A process has one fallback per key, so if another library
// has registered it first, selective segments throw an error; everything else works.
constexpr c10::DispatchKey kObserving = c10::DispatchKey::TESTING_ONLY_GenericMode;
// For kernels outside torch, below autograd and above the devices. Torch registers none there, and
// others do so only for random numbers. Never enabled by itself: see replay_product().
constexpr c10::DispatchKey kReplaying = c10::DispatchKey::CustomRNGKeyId;

constexpr std::array<const char*, 10> kProducts = {
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

thread_local Recorder* active = nullptr;
// Results that the replaying kernel returns on this thread.
thread_local std::optional<std::vector<c10::IValue>> to_replay;

// Takes this thread out of its selective segment while it lives.
struct OutsideSegment {
  Recorder* const outer = std::exchange(active, nullptr);
  ~OutsideSegment() { active = outer; }
};

// Returns the name of a product from the list above, or null for any other operator.
const char* product_name(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (!name.overload_name.empty()) return nullptr;
  const auto found = std::find(kProducts.begin(), kProducts.end(), std::string_view(name.name));
  return found == kProducts.end() ? nullptr : *found;
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

// Returns whether this call reaches the dispatcher again as other calls, above autograd. Composite
// operators do, and so do operators that a mode above autograd (autocast) handles first.
bool is_decomposed(const c10::OperatorHandle& op, c10::DispatchKeySet below) {
  return below.highestFunctionalityKey() > c10::DispatchKey::AutogradNestedTensor ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

Recorder::Call call_of(const char* name, at::ArrayRef<c10::IValue> arguments) {
  Recorder::Call call{name, {}};
  for (const c10::IValue& value : arguments) {
    if (value.isTensor()) call.add(value.toTensor());
  }
  return call;
}

// Attention omits the statistics for backward if no gradients are recorded, as in the first run of
// a segment. Its backward reads them anyway.
void request_statistics(const c10::FunctionSchema& schema, torch::jit::Stack& stack) {
  if (const auto index = schema.argumentIndexWithName("compute_log_sumexp")) {
    stack[stack.size() - schema.arguments().size() + static_cast<std::size_t>(*index)] = true;
  }
}

// Fallback of the observing key, called for every operator of a selective segment.
void observe(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below =
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kObserving);
  const bool decomposed = active != nullptr && is_decomposed(op, below);
  std::optional<c10::impl::ExcludeDispatchKeyGuard> as_a_whole;
  if (!decomposed) as_a_whole.emplace(kObserving);
  const char* product = active == nullptr || decomposed ? nullptr : product_name(op);
  const c10::FunctionSchema& schema = op.schema();
  if (product == nullptr) {
    if (active != nullptr && schema.is_mutable()) {
      const c10::impl::ExcludeDispatchKeyGuard unseen(kObserving);
      protect_arguments(schema, *stack);
    }
    op.redispatchBoxed(below, stack);
    return;
  }
  Recorder::Call call = call_of(product, torch::jit::last(*stack, schema.arguments().size()));
  if (active->replaying()) {
    to_replay = active->kept(call);
    op.redispatchBoxed(below.add(kReplaying), stack);
    return;
  }
  request_statistics(schema, *stack);
  {
    const OutsideSegment outside;
    op.redispatchBoxed(below, stack);
  }
  active->keep(std::move(call), torch::jit::last(*stack, schema.returns().size()).vec());
}

// Kernel of a product in the recomputation, below autograd.
void replay_product(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  if (!to_replay) {
    throw UsageError(str(op.operator_name().name, " was called with a custom random generator. ",
                         "It does not take one."));
  }
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (c10::IValue& value : *to_replay) stack->push_back(std::move(value));
  to_replay.reset();
}

// Returns nullopt if another library has registered the observing key.
std::optional<torch::Library> take_observing_key() {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kObserving)) return {};
  torch::Library library(torch::Library::IMPL, "_", kObserving, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&observe>());
  return library;
}
const std::optional<torch::Library> observing = take_observing_key();

TORCH_LIBRARY_IMPL(aten, CustomRNGKeyId, m) {
  for (const char* name : kProducts) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&replay_product>());
  }
}

constexpr const char* kMustBeDeterministic =
    "A recomputed segment must compute the same both times. Possible causes of a difference: code "
    "that checks whether gradients are recorded (at::GradMode, requires_grad(); attention may "
    "choose its kernel this way), random numbers that are not torch's, or state that the first run "
    "changed. Make the segment deterministic, or do not recompute it.";

std::string text_of(const Recorder::Call& call) {
  std::string text = str(call.name, "(");
  for (const Recorder::Operand& operand : call.operands) {
    if (text.back() != '(') text += ", ";
    if (operand.type == at::ScalarType::Undefined) {
      text += "undefined";
    } else {
      text += tessera::str(c10::toString(operand.type), " ", at::IntArrayRef(operand.sizes));
    }
  }
  return text + ")";
}

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

bool shares_memory(const c10::IValue& value, const at::Tensor& tensor) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().is_alias_of(tensor);
}

}  // namespace

void Recorder::Call::add(const at::Tensor& tensor) {
  operands.push_back(tensor.defined() ? Operand{tensor.scalar_type(), tensor.sizes().vec()}
                                      : Operand{});
}

Recorder* Recorder::current() { return active; }

void Recorder::run(const std::function<void()>& f) {
  if (!observing) {
    throw UsageError(
        "Selective recomputation is not available: another library in this process uses the "
        "dispatch key TESTING_ONLY_GenericMode, which Tessera needs to find matrix products. Use "
        "full recomputation, or do not load that library.");
  }
  const c10::impl::IncludeDispatchKeyGuard on(kObserving);
  Recorder* const outer = std::exchange(active, this);
  struct Restore {
    Recorder* outer;
    ~Restore() { active = outer; }
  } restore{outer};
  next_ = 0;
  f();
  if (replaying_ && next_ < products_.size()) {
    throw UsageError(str("Selective recomputation: the recomputation of a segment ended after ",
                         next_, " of ", products_.size(), " matrix products. The first run called ",
                         text_of(products_[next_].call), " next. ", kMustBeDeterministic));
  }
}

void Recorder::protect(const at::Tensor& tensor) {
  if (replaying_ || !tensor.defined() || !tensor.has_storage()) return;
  for (Product& product : products_) {
    for (Result& result : product.results) {
      if (!shares_memory(result.value, tensor)) continue;
      const at::Tensor copy = result.value.toTensor().clone();
      result = {copy, version_of(copy)};
    }
  }
}

void Recorder::watch(const std::vector<at::Tensor>& outputs) {
  for (Product& product : products_) {
    for (Result& result : product.results) {
      for (const at::Tensor& output : outputs) {
        if (!output.defined() || !shares_memory(result.value, output)) continue;
        const auto& counter = output.unsafeGetTensorImpl()->version_counter();
        result.value.toTensor().unsafeGetTensorImpl()->set_version_counter(counter);
        result.version = counter.current_version();
      }
    }
  }
}

void Recorder::keep(Call call, std::vector<c10::IValue> results) {
  Product& product = products_.emplace_back();
  product.call = std::move(call);
  for (c10::IValue& value : results) {
    if (!value.isTensor() || !value.toTensor().defined()) {
      product.results.push_back({std::move(value)});
      continue;
    }
    // An alias that shares the version counter but is not part of any graph.
    const at::Tensor tensor = value.toTensor();
    const at::Tensor alias = tensor.variable_data();
    alias.unsafeGetTensorImpl()->set_version_counter(
        tensor.unsafeGetTensorImpl()->version_counter());
    product.results.push_back({alias, version_of(tensor)});
  }
}

std::vector<c10::IValue> Recorder::kept(const Call& call) {
  if (next_ >= products_.size()) {
    throw UsageError(str("Selective recomputation: the recomputation of a segment calls ",
                         text_of(call), ", but its first run made only ", products_.size(),
                         " matrix products. ", kMustBeDeterministic));
  }
  Product& product = products_[next_];
  if (product.call != call) {
    throw UsageError(str("Selective recomputation: the recomputation of a segment calls ",
                         text_of(call), " as matrix product ", next_ + 1, " of ", products_.size(),
                         ", where its first run called ", text_of(product.call), ". ",
                         kMustBeDeterministic));
  }
  std::vector<c10::IValue> values;
  for (Result& result : product.results) {
    if (result.value.isTensor() && result.value.toTensor().defined() &&
        version_of(result.value.toTensor()) != result.version) {
      throw UsageError(
          str("Selective recomputation: the result of ", text_of(call),
              " was changed in place, so it cannot be reused. Use an operation that is not in "
              "place, or full recomputation."));
    }
    values.push_back(std::move(result.value));
  }
  ++next_;
  return values;
}

std::vector<at::Tensor> Recorder::results(Call call,
                                          const std::function<std::vector<at::Tensor>()>& compute) {
  std::vector<at::Tensor> tensors;
  if (replaying_) {
    for (c10::IValue& value : kept(call)) tensors.push_back(std::move(value).toTensor());
    return tensors;
  }
  {
    // Products inside `compute` are intermediate steps: only its results are kept.
    const OutsideSegment outside;
    tensors = compute();
  }
  keep(std::move(call), std::vector<c10::IValue>(tensors.begin(), tensors.end()));
  return tensors;
}

}  // namespace tessera::nn
