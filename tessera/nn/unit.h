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

// Is told when a forward or a backward pass reaches a unit of a model and when it has left it.
// A unit that is used twice in a forward pass is entered and left twice, in both directions.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  // `differentiable`: some input wants a gradient, so that leave_backward() will come.
  virtual void enter_forward(bool differentiable) = 0;
  // `differentiable`: a backward pass may come, and would begin with enter_backward().
  virtual void leave_forward(bool differentiable) = 0;
  virtual void enter_backward() = 0;  // the gradients of its outputs are there
  virtual void leave_backward() = 0;  // so are those of its inputs
  // Floating-point inputs are cast to this type before the unit's forward. Nothing: they stay.
  virtual std::optional<at::ScalarType> input_type() const { return std::nullopt; }
};

// Identities whose backward tells the observer. Tensors that need no gradient stay as they are.
// Inputs are cast first, as the observer wants them.
std::vector<at::Tensor> watch_inputs(const std::shared_ptr<UnitObserver>& observer,
                                     std::vector<at::Tensor> tensors);
// The same behind the unit: its backward begins here.
std::vector<at::Tensor> watch_outputs(const std::shared_ptr<UnitObserver>& observer,
                                      std::vector<at::Tensor> tensors);

// Calls f(args…) as a unit under the eyes of `observer`; null calls it plainly.
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
                "a unit returns a tensor, or a tuple, pair, vector, array or optional of tensors: "
                "backward is watched through them");
  if (observer) {
    observer->leave_forward(any_requires_grad(outputs));
    map_tensors(outputs, [&](std::vector<at::Tensor> tensors) {
      return watch_outputs(observer, std::move(tensors));
    });
  }
  return outputs;
}

// What every unit has besides its module: who watches it, and what it recomputes.
class UnitBase {
 public:
  virtual ~UnitBase() = default;
  // Null: nobody watches it.
  void observe(std::shared_ptr<UnitObserver> observer) { observer_ = std::move(observer); }
  // What its next forward keeps for backward.
  void set_recompute(Recompute mode) { recompute_ = mode; }
  Recompute recompute() const { return recompute_; }
  bool in_use() const { return observer_ != nullptr || recompute_ != Recompute::none; }

 protected:
  // The forward of a unit: watched outside, recomputed inside.
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

// Drop-in holder that makes a module a unit: what ZeRO-3 gathers and frees together, and what
// backward recomputes. Use it where you would use the holder of TORCH_MODULE:
//   blocks.push_back(register_module(name, nn::Unit<Block>(config)));
//   x = blocks[i](x);          // or blocks[i]->forward(x)
// Unit<Block>, by the holder, and Unit<BlockImpl>, by the module, are the same thing.
template <typename M>
class UnitImpl : public M, public UnitBase {
  static_assert(std::is_base_of_v<torch::nn::Module, M>,
                "Unit<M>: M is a module (BlockImpl), or the holder that TORCH_MODULE(Block) makes");

 public:
  using M::M;
  template <typename... Args>
  auto forward(Args&&... args) {
    // By value: with recomputation the call outlives this one, and so must the module.
    auto self = std::static_pointer_cast<UnitImpl>(this->shared_from_this());
    return this->run(
        [self](auto&&... in) { return self->M::forward(std::forward<decltype(in)>(in)...); },
        std::forward<Args>(args)...);
  }
};

// The module that Unit<M> holds: M itself, or the one that the holder M is made for.
template <typename M>
struct UnitModule {
  // M itself.
  using Type = M;
};
// The same for a holder.
template <typename M>
requires requires { requires std::is_base_of_v<torch::nn::ModuleHolder<typename M::Impl>, M>; }
struct UnitModule<M> {
  // The module in the holder.
  using Type = typename M::Impl;
};

// The holder of a UnitImpl.
template <typename M>
class Unit : public torch::nn::ModuleHolder<UnitImpl<typename UnitModule<M>::Type>> {
 public:
  // What torch's holders call the module that they hold.
  using Impl = UnitImpl<typename UnitModule<M>::Type>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  // As the holder's own, which cannot name the result of a forward that is a template.
  template <typename... Args>
  auto operator()(Args&&... args) {
    return (*this)->forward(std::forward<Args>(args)...);
  }
};

// A unit of a model: the name and module that own its parameters, and where to watch it.
struct FoundUnit {
  std::string name;
  torch::nn::Module* module = nullptr;
  UnitBase* unit = nullptr;
};

// The units of a model in declaration order: every Unit<M>, and the children with parameters of
// every Sequential that is not inside a unit. (Such a child takes and returns one tensor; for
// others, declare the units.) Nested units are listed after the one around them. A Sequential calls
// such children through their units from now on: [Note: Sequential].
std::vector<FoundUnit> find_units(torch::nn::Module& model);

// Children of Sequentials that nobody observes and that recompute nothing are called directly
// again. Their units go with that.
void release_units(torch::nn::Module& model);

// Sets the mode of all units of the model; throws UsageError if it has none.
void set_recompute(torch::nn::Module& model, Recompute mode);

}  // namespace tessera::nn
