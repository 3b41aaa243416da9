#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/zero/buffers.h"
#include "tessera/zero/elementwise.h"
#include "tessera/zero/engine.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/plan.h"
#include "tessera/zero/reducer.h"

namespace tessera::zero {

// Arguments for constructing an optimizer.
struct UpdateContext {
  Plan& plan;
  const EngineOptions& options;
  const DataGroups& groups;
  const Buffers& buffers;
  const Gatherer& gatherer;
};

// Settings of one step: StepOptions with the defaults filled in.
struct StepSettings {
  double lr = 0;
  double clip_norm = 0;                               // 0 disables clipping
  std::optional<double> weight_decay = std::nullopt;  // nullopt: the optimizer's own
  std::vector<double> lr_scales = {};                 // by parameter
  double lr_of(int param) const { return lr * lr_scales[static_cast<std::size_t>(param)]; }
};

// Update of an optimizer's matrices: rules::Momentum, orthogonalization, rules::Descent.
struct MatrixRule {
  rules::Momentum momentum;
  double weight_decay = 0;
  // Learning rate of the other parameters, as a multiple of that of the matrices.
  double elementwise_lr = 1;
  std::vector<bool> by_matrix;  // by parameter
};

// Optimizer for this rank's elements of every parameter: its shard, or all elements at stage 0. An
// elementwise rule gives the same result for any sharding; a rule that needs whole matrices
// exchanges them as described in [Note: matrices].
class Update {
 public:
  explicit Update(const UpdateContext& context);
  virtual ~Update() = default;

  // Returns the sum of squares of the gradient elements that this rank counts (its shards,
  // ModelAxes::counted), in fp64, in declaration order.
  double sum_of_squares(const Reducer& reducer) const;

  // Visits the counted elements, one flat range at a time, with the index of the parameter.
  void each_counted(const Reducer& reducer,
                    const std::function<void(int param, const at::Tensor& grad)>& visit) const;
  // Returns the index of the last parameter, in declaration order, with a counted element that is
  // not finite: the first that backward reached. -1 if all are finite.
  int last_non_finite(const Reducer& reducer) const;

  // Applies one step. Gradients are multiplied by `scale`; parameters not in `used` are unchanged.
  virtual void apply(const Reducer& reducer, const std::vector<bool>& used,
                     const StepSettings& settings, double scale) = 0;

  // Returns the tensors of a parameter for its rule, with its states.
  virtual ShardTensors shard(int param, const Reducer& reducer) const {
    return tensors(param, reducer);
  }
  // Returns the rule of all parameters that are not matrices of matrix_rule(); null if there is
  // more than one.
  virtual const rules::Rule* rule() const { return nullptr; }
  // Returns the weight decay of rule().
  virtual double weight_decay() const { return 0; }
  // Returns the rule of matrices that are updated as a whole; null if there are none.
  virtual const MatrixRule* matrix_rule() const { return nullptr; }
  // Returns true if StepSettings::weight_decay can be set.
  virtual bool sets_weight_decay() const { return true; }

  // Returns the fp32 master copy of this rank's elements of a parameter, flat; undefined if there
  // is none.
  at::Tensor master_shard(int param) const;
  // Returns master_shard(), or a copy of a master copy that is not in memory. Undefined if there is
  // none.
  virtual at::Tensor read_master(int param) const { return master_shard(param); }
  // Overwrites elements [begin, begin + values.numel()) of the master copy, if there is one.
  virtual void write_master(int param, std::int64_t begin, const at::Tensor& values);
  // Returns the master copy if it is not in memory.
  virtual std::optional<StoredState> stored_master(int) { return std::nullopt; }
  // Returns the other states of this rank's elements by name, such as moments: flat views, which
  // cover all memory of the optimizer.
  virtual std::vector<std::pair<std::string, at::Tensor>> states(int param) const = 0;
  // Returns the states that are not tensors in memory, which states() omits.
  virtual std::vector<StoredState> stored_states(int) { return {}; }
  // Returns the number of updates of each parameter; steps() counts all steps.
  const std::vector<std::int64_t>& updates() const { return updates_; }
  // Sets the counts after the states have been overwritten.
  virtual void resume(std::int64_t steps, std::vector<std::int64_t> updates);
  // Returns the optimizer and its settings in one line, for comparing ranks and for messages.
  virtual std::string settings() const = 0;
  std::int64_t steps() const { return steps_; }
  double default_lr() const { return default_lr_; }

 protected:
  // Allocates a state of the optimizer: one number for each of this rank's elements, initially
  // zero.
  std::vector<Buffer> make_state() const;
  at::Tensor shard_of_state(const std::vector<Buffer>& state, int param) const;
  const Param& param(int index) const { return plan_.params[static_cast<std::size_t>(index)]; }
  const Space& space_of(const Param& p) const {
    return plan_.spaces[static_cast<std::size_t>(p.space)];
  }
  // Returns the range of a parameter that this rank counts in the norm.
  ShardRange counted_shard(const Param& p) const;
  // Returns the range of a parameter that this rank holds.
  ShardRange held(const Param& p) const;
  // Return the tensors of a parameter for a rule, without its states, and the arguments of its
  // step. `lr`: learning rate of this parameter.
  ShardTensors tensors(int param, const Reducer& reducer) const;
  rules::Step step_of(int param, double lr, double weight_decay, double scale) const;

  Plan& plan_;
  const Buffers& buffers_;
  const Gatherer& gatherer_;
  const bool sharded_;
  const std::uint64_t seed_;
  std::vector<std::vector<Run>> counted_;  // per parameter; empty: this rank counts all elements
  std::vector<Buffer> master_;
  std::int64_t steps_ = 0;
  std::vector<std::int64_t> updates_;
  double default_lr_ = 0;
};

// Makes the optimizer of Options::optimizer. Throws UsageError if the layout does not support it.
std::unique_ptr<Update> make_update(const UpdateContext& context);

}  // namespace tessera::zero
