#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/zero/buffers.h"
#include "tessera/zero/elementwise.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/plan.h"
#include "tessera/zero/reducer.h"

namespace tessera::zero {

// What an optimizer is made of.
struct UpdateContext {
  Plan& plan;
  const EngineOptions& options;
  const DataGroups& groups;
  const Buffers& buffers;
  const Gatherer& gatherer;
};

// Settings of one step: StepOptions with its open values filled in.
struct StepSettings {
  double lr = 0;
  double clip_norm = 0;                               // 0 does not clip
  std::optional<double> weight_decay = std::nullopt;  // nullopt: the optimizer's own
  std::vector<double> lr_scales = {};                 // by parameter
  double lr_of(int param) const { return lr * lr_scales[static_cast<std::size_t>(param)]; }
};

// The optimizer on what this rank holds of every parameter: its shard, or all of it at stage 0.
// What a rule computes for an element depends on that element alone, so that the shards do not
// show; a rule that needs whole matrices moves them as [Note: matrices] says.
class Update {
 public:
  explicit Update(const UpdateContext& context);
  virtual ~Update() = default;

  // The sum of the squares of the gradient in this rank's shards, in fp64, in declaration order,
  // of the elements that this rank counts (ModelAxes::counted).
  double sum_of_squares(const Reducer& reducer) const;

  // The elements that it adds up, one flat range after the other, with the parameter's index.
  void each_counted(const Reducer& reducer,
                    const std::function<void(int param, const at::Tensor& grad)>& visit) const;
  // Index of the last parameter, in declaration order, with an element that is not finite among
  // these: the first that backward reached. -1: all are finite.
  int last_non_finite(const Reducer& reducer) const;

  // One step. Gradients are multiplied by `scale`; parameters not in `used` stay as they are.
  virtual void apply(const Reducer& reducer, const std::vector<bool>& used,
                     const StepSettings& settings, double scale) = 0;

  // A parameter as its rule sees it, with its states.
  virtual ShardTensors shard(int param, const Reducer& reducer) const {
    return tensors(param, reducer);
  }
  // The rule that is all this optimizer does, with its weight decay; null: it does more.
  virtual const rules::Rule* rule() const { return nullptr; }
  virtual double weight_decay() const { return 0; }
  // Returns whether StepSettings::weight_decay can be set.
  virtual bool sets_weight_decay() const { return true; }

  // The fp32 copy of what this rank holds of a parameter, flat; undefined where there is none.
  at::Tensor master_shard(int param) const;
  // What else there is for each element that this rank holds, by name: moments, velocities. Views,
  // flat; all of the optimizer's memory is in them.
  virtual std::vector<std::pair<std::string, at::Tensor>> states(int param) const = 0;
  // How often each parameter was updated; steps() counts all steps.
  const std::vector<std::int64_t>& updates() const { return updates_; }
  // The states have been overwritten, and belong to an optimizer that has come so far.
  virtual void resume(std::int64_t steps, std::vector<std::int64_t> updates);
  // The optimizer and its settings in one line, for messages. Equal on ranks that update alike.
  virtual std::string settings() const = 0;
  std::int64_t steps() const { return steps_; }
  double default_lr() const { return default_lr_; }

 protected:
  // A state of the optimizer for all that is held: one number per element, zero at first.
  std::vector<Buffer> make_state() const;
  at::Tensor shard_of_state(const std::vector<Buffer>& state, int param) const;
  const Param& param(int index) const { return plan_.params[static_cast<std::size_t>(index)]; }
  const Space& space_of(const Param& p) const {
    return plan_.spaces[static_cast<std::size_t>(p.space)];
  }
  // The elements of a parameter that this rank counts in the norm.
  ShardRange counted_shard(const Param& p) const;
  // What this rank holds of a parameter, by its place in it.
  ShardRange held(const Param& p) const;
  // A parameter for a rule, without its states; and the numbers of its step. `lr`: its own.
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

// Makes the one that Options::optimizer asks for. Throws UsageError if the layout does not allow
// it.
std::unique_ptr<Update> make_update(const UpdateContext& context);

}  // namespace tessera::zero
