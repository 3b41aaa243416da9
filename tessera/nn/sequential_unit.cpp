#include "tessera/nn/sequential_unit.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <utility>
#include <vector>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::nn {
namespace {

using torch::nn::AnyModule;
using torch::nn::AnyModuleHolder;
using torch::nn::AnyModulePlaceholder;
using torch::nn::AnyValue;

// Returns the holder inside an AnyModule, which is private. Access is not checked in the arguments
// of an explicit instantiation; if torch renames the member, this does not compile.
std::unique_ptr<AnyModulePlaceholder>& holder_in(AnyModule& module);
template <std::unique_ptr<AnyModulePlaceholder> AnyModule::*Member>
struct HolderAccess {
  friend std::unique_ptr<AnyModulePlaceholder>& holder_in(AnyModule& module) {
    return module.*Member;
  }
};
template struct HolderAccess<&AnyModule::content_>;

// Base of the holders that call a child through its unit.
struct ThroughUnit {
  explicit ThroughUnit(std::shared_ptr<SequentialUnit> u) : unit(std::move(u)) {}
  virtual ~ThroughUnit() = default;

  AnyValue call(std::vector<AnyValue>&& arguments) const {
    auto* x = arguments.size() == 1 ? arguments[0].try_get<at::Tensor>() : nullptr;
    if (x == nullptr) {
      throw UsageError(str("A child of a Sequential that is a unit was called with ",
                           arguments.size(),
                           " arguments. It must be called with one tensor. Hold modules that take "
                           "other arguments in nn::Unit<M>, outside of the Sequential."));
    }
    return AnyValue(unit->forward(std::move(*x)));
  }

  std::unique_ptr<AnyModulePlaceholder> clone_child(std::optional<at::Device> device) const {
    AnyModule clone = unit->child().clone(device);
    return std::move(holder_in(clone));
  }

  std::shared_ptr<SequentialUnit> unit;
};

// Replacement for AnyModuleHolder<M, Arguments...> that derives from it.
template <typename M, typename... Arguments>
struct TypedHolder : AnyModuleHolder<M, Arguments...>, ThroughUnit {
  TypedHolder(std::shared_ptr<M>&& module, std::shared_ptr<SequentialUnit> unit)
      : AnyModuleHolder<M, Arguments...>(std::move(module)), ThroughUnit(std::move(unit)) {}
  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    return call(std::move(arguments));
  }
  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<TypedHolder>(*this);
  }
  std::unique_ptr<AnyModulePlaceholder> clone_module(
      std::optional<at::Device> device) const override {
    return clone_child(device);
  }
};

// Holder for a child whose type is not known here. It reports that it holds a SequentialUnit, so
// that torch rejects a cast to any module's type.
struct UntypedHolder : AnyModulePlaceholder, ThroughUnit {
  explicit UntypedHolder(std::shared_ptr<SequentialUnit> unit)
      : AnyModulePlaceholder(typeid(SequentialUnit)), ThroughUnit(std::move(unit)) {}
  AnyValue forward(std::vector<AnyValue>&& arguments) override {
    return call(std::move(arguments));
  }
  std::shared_ptr<torch::nn::Module> ptr() override { return unit->child().ptr(); }
  std::unique_ptr<AnyModulePlaceholder> copy() const override {
    return std::make_unique<UntypedHolder>(*this);
  }
  std::unique_ptr<AnyModulePlaceholder> clone_module(
      std::optional<at::Device> device) const override {
    return clone_child(device);
  }
};

template <typename M, typename Result, typename... Arguments>
std::unique_ptr<AnyModulePlaceholder> typed_holder(std::shared_ptr<M> module,
                                                   const std::shared_ptr<SequentialUnit>& unit,
                                                   Result (M::*)(Arguments...)) {
  return std::make_unique<TypedHolder<M, Arguments...>>(std::move(module), unit);
}

// Returns null unless the child is one of these types.
template <typename... M>
std::unique_ptr<AnyModulePlaceholder> typed_holder_of(const std::shared_ptr<SequentialUnit>& unit) {
  std::unique_ptr<AnyModulePlaceholder> holder;
  const AnyModule& child = unit->child();
  ((child.type_info() == typeid(M)
        ? void(holder = typed_holder(std::dynamic_pointer_cast<M>(child.ptr()), unit, &M::forward))
        : void()),
   ...);
  return holder;
}

}  // namespace

at::Tensor SequentialUnit::forward(at::Tensor x) {
  // By value: with recomputation the lambda outlives this call, and so must the child.
  return run([child = child_](at::Tensor in) mutable { return child.forward<at::Tensor>(in); },
             std::move(x));
}

std::shared_ptr<SequentialUnit> unit_of(AnyModule& slot) {
  const auto* ours = dynamic_cast<const ThroughUnit*>(holder_in(slot).get());
  return ours == nullptr ? nullptr : ours->unit;
}

void call_through(AnyModule& slot, const std::shared_ptr<SequentialUnit>& unit) {
  auto holder = typed_holder_of<torch::nn::LinearImpl, torch::nn::Conv1dImpl, torch::nn::Conv2dImpl,
                                torch::nn::Conv3dImpl, torch::nn::ConvTranspose1dImpl,
                                torch::nn::ConvTranspose2dImpl, torch::nn::ConvTranspose3dImpl,
                                torch::nn::EmbeddingImpl, torch::nn::LayerNormImpl,
                                torch::nn::GroupNormImpl, torch::nn::PReLUImpl>(unit);
  if (holder == nullptr) holder = std::make_unique<UntypedHolder>(unit);
  holder_in(slot) = std::move(holder);
}

}  // namespace tessera::nn
