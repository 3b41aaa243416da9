#pragma once

#include <memory>
#include <vector>

#include "tessera/zero/buffers.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/plan.h"
#include "tessera/zero/reducer.h"

namespace tessera::zero {

// The optimizer on this rank's part of every parameter: its chunk, or all of it at stage 0.
// Whatever is computed for an element depends on that element alone, so the parts do not show.
class Update {
 public:
  Update(Plan& plan, const Options& options, const comm::Group& group, const Buffers& buffers,
         const Gatherer& gatherer);
  virtual ~Update() = default;

  // The sum of the squares of the gradient in this rank's chunks, in fp64, in declaration order.
  double sum_of_squares(const Reducer& reducer) const;

  // One step. Gradients are multiplied by `scale`; parameters not in `used` stay as they are.
  virtual void apply(const Reducer& reducer, const std::vector<bool>& used, double lr,
                     double scale) = 0;

  // The fp32 copy of this rank's part of a parameter, flat; undefined where there is none.
  at::Tensor master_slice(int param) const;
  std::int64_t steps() const { return steps_; }
  double default_lr() const { return default_lr_; }

 protected:
  // A state of the optimizer for all parts of a space: one number per element, zero at first.
  std::vector<Buffer> make_state() const;
  at::Tensor slice(const std::vector<Buffer>& state, int param) const;
  const Param& param(int index) const { return plan_.params[static_cast<std::size_t>(index)]; }
  const Space& space_of(const Param& p) const {
    return plan_.spaces[static_cast<std::size_t>(p.space)];
  }
  // Position of this rank's part inside the parameter.
  Slice part(const Param& p) const;

  Plan& plan_;
  const comm::Group group_;
  const Buffers& buffers_;
  const Gatherer& gatherer_;
  const bool sharded_;
  const std::uint64_t seed_;
  std::vector<Buffer> master_;
  std::int64_t steps_ = 0;
  double default_lr_ = 0;
};

// Makes the one that Options::optimizer asks for. Throws UsageError if the layout does not allow
// it.
std::unique_ptr<Update> make_update(Plan& plan, const Options& options, const comm::Group& group,
                                    const Buffers& buffers, const Gatherer& gatherer);

}  // namespace tessera::zero
