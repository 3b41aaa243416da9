#include "tessera/zero/torch_states.h"

#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::zero {
namespace {

using torch::optim::OptimizerOptions;

at::Tensor zeros_for(const at::Tensor& param) { return at::zeros_like(param.detach()); }

// Removes undefined tensors.
TorchStates::Tensors defined(TorchStates::Tensors all) {
  std::erase_if(all, [](const auto& each) { return !each.second.defined(); });
  return all;
}

// Adam and AdamW have the same states.
template <class Options, class ParamState>
class AdamStates final : public TorchStates {
  std::unique_ptr<State> fresh(const OptimizerOptions& options,
                               const at::Tensor& param) const override {
    auto state = std::make_unique<ParamState>();
    state->step(0);
    state->exp_avg(zeros_for(param));
    state->exp_avg_sq(zeros_for(param));
    if (static_cast<const Options&>(options).amsgrad()) state->max_exp_avg_sq(zeros_for(param));
    return state;
  }
  Tensors tensors(const State& state) const override {
    const auto& known = static_cast<const ParamState&>(state);
    return defined({{"exp_avg", known.exp_avg()},
                    {"exp_avg_sq", known.exp_avg_sq()},
                    {"max_exp_avg_sq", known.max_exp_avg_sq()}});
  }
  void set_count(State& state, std::int64_t count) const override {
    static_cast<ParamState&>(state).step(count);
  }
};

class SgdStates final : public TorchStates {
  using ParamState = torch::optim::SGDParamState;
  std::unique_ptr<State> fresh(const OptimizerOptions& options,
                               const at::Tensor& param) const override {
    if (static_cast<const torch::optim::SGDOptions&>(options).momentum() == 0) return nullptr;
    auto state = std::make_unique<ParamState>();
    state->momentum_buffer(zeros_for(param));
    return state;
  }
  Tensors tensors(const State& state) const override {
    return defined({{"momentum_buffer", static_cast<const ParamState&>(state).momentum_buffer()}});
  }
  void set_count(State&, std::int64_t) const override {}
};

class RmspropStates final : public TorchStates {
  using ParamState = torch::optim::RMSpropParamState;
  std::unique_ptr<State> fresh(const OptimizerOptions& options,
                               const at::Tensor& param) const override {
    const auto& known = static_cast<const torch::optim::RMSpropOptions&>(options);
    auto state = std::make_unique<ParamState>();
    state->step(0);
    state->square_avg(zeros_for(param));
    if (known.momentum() > 0) state->momentum_buffer(zeros_for(param));
    if (known.centered()) state->grad_avg(zeros_for(param));
    return state;
  }
  Tensors tensors(const State& state) const override {
    const auto& known = static_cast<const ParamState&>(state);
    return defined({{"square_avg", known.square_avg()},
                    {"momentum_buffer", known.momentum_buffer()},
                    {"grad_avg", known.grad_avg()}});
  }
  void set_count(State& state, std::int64_t count) const override {
    static_cast<ParamState&>(state).step(count);
  }
};

class AdagradStates final : public TorchStates {
  using ParamState = torch::optim::AdagradParamState;
  std::unique_ptr<State> fresh(const OptimizerOptions& options,
                               const at::Tensor& param) const override {
    const auto& known = static_cast<const torch::optim::AdagradOptions&>(options);
    auto state = std::make_unique<ParamState>();
    state->step(0);
    state->sum(at::full_like(param.detach(), known.initial_accumulator_value()));
    return state;
  }
  Tensors tensors(const State& state) const override {
    return defined({{"sum", static_cast<const ParamState&>(state).sum()}});
  }
  void set_count(State& state, std::int64_t count) const override {
    static_cast<ParamState&>(state).step(count);
  }
  bool made_at_start() const override { return true; }
};

}  // namespace

std::unique_ptr<TorchStates> known_states(const torch::optim::Optimizer& optimizer) {
  namespace optim = torch::optim;
  // Exact types: a derived class may have more states.
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(optim::Adam)) {
    return std::make_unique<AdamStates<optim::AdamOptions, optim::AdamParamState>>();
  }
  if (type == typeid(optim::AdamW)) {
    return std::make_unique<AdamStates<optim::AdamWOptions, optim::AdamWParamState>>();
  }
  if (type == typeid(optim::SGD)) return std::make_unique<SgdStates>();
  if (type == typeid(optim::RMSprop)) return std::make_unique<RmspropStates>();
  if (type == typeid(optim::Adagrad)) return std::make_unique<AdagradStates>();
  throw UsageError(str("The engine cannot save or load the states of the optimizer ",
                       c10::demangle(type.name()),
                       ". Use Adam, AdamW, SGD, RMSprop or Adagrad of torch::optim, or an "
                       "optimizer of zero::"));
}

}  // namespace tessera::zero
