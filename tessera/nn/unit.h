#pragma once

#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/nn/recompute.h"
#include "tessera/nn/tensors.h"

namespace tessera::nn {

// Observer called when a forward or backward pass enters and leaves a unit of a model. A unit that
// is used twice in a forward pass is entered and left twice, in both directions.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  // `differentiable`: an input requires a gradient, so leave_backward() will be called.
  virtual void enter_forward(bool differentiable) = 0;
  // `differentiable`: a backward pass may follow, and would begin with enter_backward().
  virtual void leave_forward(bool differentiable) = 0;
  virtual void enter_backward() = 0;  // the gradients of its outputs are available
  virtual void leave_backward() = 0;  // so are those of its inputs
  // Type to which floating-point inputs are cast before the unit's forward. nullopt: no cast.
  virtual std::optional<at::ScalarType> input_type() const { return std::nullopt; }
};

// Returns the tensors unchanged, with a backward that calls the observer's leave_backward().
// Tensors that need no gradient stay as they are. Floating-point inputs are first cast to
// input_type().
std::vector<at::Tensor> watch_inputs(const std::shared_ptr<UnitObserver>& observer,
                                     std::vector<at::Tensor> tensors);
// Same for the outputs of the unit: backward calls enter_backward().
std::vector<at::Tensor> watch_outputs(const std::shared_ptr<UnitObserver>& observer,
                                      std::vector<at::Tensor> tensors);

// Calls f(args…) as a unit observed by `observer`. A null observer only calls f.
template <typename F, typename... Args>
auto observed(const std::shared_ptr<UnitObserver>& observer, F&& f, Args&&... args) {
  auto inputs = std::make_tuple(std::decay_t<Args>(std::forward<Args>(args))...);
  if (observer) {
    observer->enter_forward(at::GradMode::is_enabled() && any_requires_grad(inputs));
    map_tensors(inputs, [&](std::vector<at::Tensor> tensors) {
      return watch_inputs(observer, std::move(tensors));
    });
  }
  auto outputs = std::apply(std::forward<F>(f), std::move(inputs));
  static_assert(HoldsTensors<decltype(outputs)>::value,
                "A unit must return a tensor, or a tuple, pair, vector, array or optional of "
                "tensors: backward is observed through them.");
  if (observer) {
    observer->leave_forward(any_requires_grad(outputs));
    map_tensors(outputs, [&](std::vector<at::Tensor> tensors) {
      return watch_outputs(observer, std::move(tensors));
    });
  }
  return outputs;
}

// Base of all units: the observer and the recomputation mode.
class UnitBase {
 public:
  virtual ~UnitBase() = default;
  // Sets the observer. Null removes it.
  void observe(std::shared_ptr<UnitObserver> observer) { observer_ = std::move(observer); }
  // Sets the recomputation mode of its next forward.
  void set_recompute(Recompute mode) { recompute_ = mode; }
  Recompute recompute() const { return recompute_; }
  bool in_use() const { return observer_ != nullptr || recompute_ != Recompute::none; }

 protected:
  // Runs the forward of a unit: observed outside, recomputed inside.
  template <typename F, typename... Args>
  auto run(F&& f, Args&&... args) {
    return observed(
        observer_,
        [&](auto&&... in) {
          return recompute_segment(recompute_, this, f, std::forward<decltype(in)>(in)...);
        },
        std::forward<Args>(args)...);
  }

 private:
  std::shared_ptr<UnitObserver> observer_;
  Recompute recompute_ = Recompute::none;
};

// Drop-in holder that makes a module a unit: ZeRO-3 gathers and frees its parameters together, and
// recomputation, if enabled, repeats it as a whole. Use it in place of the holder of TORCH_MODULE:
//   blocks.push_back(register_module(name, nn::Unit<Block>(config)));
//   x = blocks[i](x);          // or blocks[i]->forward(x)
// Unit<Block>, with the holder, and Unit<BlockImpl>, with the module, are the same.
template <typename M>
class UnitImpl : public M, public UnitBase {
  static_assert(
      std::is_base_of_v<torch::nn::Module, M>,
      "Unit<M>: M must be a module (BlockImpl) or the holder made by TORCH_MODULE(Block)");

 public:
  using M::M;
  template <typename... Args>
  auto forward(Args&&... args) {
    // By value: with recomputation the lambda outlives this call, and so must the module.
    auto self = std::static_pointer_cast<UnitImpl>(this->shared_from_this());
    return this->run(
        [self](auto&&... in) { return self->M::forward(std::forward<decltype(in)>(in)...); },
        std::forward<Args>(args)...);
  }
};

// Module that Unit<M> holds: M itself, or the module of the holder M.
template <typename M>
struct UnitModule {
  // M itself.
  using Type = M;
};
// Specialization for a holder.
template <typename M>
requires requires { requires std::is_base_of_v<torch::nn::ModuleHolder<typename M::Impl>, M>; }
struct UnitModule<M> {
  // Module of the holder.
  using Type = typename M::Impl;
};

// Holder of a UnitImpl.
template <typename M>
class Unit : public torch::nn::ModuleHolder<UnitImpl<typename UnitModule<M>::Type>> {
 public:
  // Name that torch's holders use for the module that they hold.
  using Impl = UnitImpl<typename UnitModule<M>::Type>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  // Replaces the holder's operator, which cannot deduce the result of a forward that is a template.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

// Unit of a model: the name and module that own its parameters, and the unit to observe.
struct FoundUnit {
  std::string name;
  torch::nn::Module* module = nullptr;
  UnitBase* unit = nullptr;
};

// Returns the units of a model in declaration order: every Unit<M>, and the children with
// parameters of every Sequential that is not inside a unit. (Such a child must take and return one
// tensor; otherwise declare the units.) Nested units are listed after the enclosing one. From this
// call on, a Sequential calls such children through their units: [Note: Sequential].
std::vector<FoundUnit> find_units(torch::nn::Module& model);

// Removes the units of children of Sequentials that have neither an observer nor recomputation.
// Such children are called directly again.
void release_units(torch::nn::Module& model);

// Sets the recomputation mode of all units of the model. Throws UsageError if it has none.
void set_recompute(torch::nn::Module& model, Recompute mode);

}  // namespace tessera::nn
