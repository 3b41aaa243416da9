#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zero {

// The states that an optimizer of torch::optim keeps for a parameter: its class hides them, and
// makes most of them in its first step. One per class that is known.
class TorchStates {
 public:
  using State = torch::optim::OptimizerParamState;
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

  virtual ~TorchStates() = default;
  // As before the first step; null if the optimizer has none with these options.
  virtual std::unique_ptr<State> fresh(const torch::optim::OptimizerOptions& options,
                                       const at::Tensor& param) const = 0;
  // One number for each element, by the names that torch gives them.
  virtual Tensors tensors(const State& state) const = 0;
  // Updates of the parameter so far, where the optimizer counts them.
  virtual void set_count(State& state, std::int64_t count) const = 0;
  // Whether the optimizer wants a state before its first step, and makes it itself.
  virtual bool made_at_start() const { return false; }
};

// Throws UsageError, with the name of the class, if it is not known.
std::unique_ptr<TorchStates> known_states(const torch::optim::Optimizer& optimizer);

}  // namespace tessera::zero
