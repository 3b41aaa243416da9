#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tessera::zero {

// Access to the states that an optimizer of torch::optim keeps for a parameter. The optimizers hide
// them, and allocate most of them in the first step. One subclass per known optimizer.
class TorchStates {
 public:
  using State = torch::optim::OptimizerParamState;
  using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

  virtual ~TorchStates() = default;
  // Returns the state before the first step; null if the optimizer has none with these options.
  virtual std::unique_ptr<State> fresh(const torch::optim::OptimizerOptions& options,
                                       const at::Tensor& param) const = 0;
  // Returns the elementwise states by their names in torch.
  virtual Tensors tensors(const State& state) const = 0;
  // Sets the number of updates of the parameter, if the optimizer counts them.
  virtual void set_count(State& state, std::int64_t count) const = 0;
  // Returns true if the optimizer creates its states when constructed, and requires them.
  virtual bool made_at_start() const { return false; }
};

// Returns the accessor for an optimizer. Throws UsageError, with the name of the class, if it is
// unknown.
std::unique_ptr<TorchStates> known_states(const torch::optim::Optimizer& optimizer);

}  // namespace tessera::zero
