#include "tessera/zero/pass_state.h"

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::zero {

PassState::PassState(std::vector<int> trainable, int model_chunks, ReducePolicy policy)
    : policy_(policy), chunks_(static_cast<std::size_t>(model_chunks)) {
  for (const int count : trainable) units_.emplace_back().trainable = count;
}

void PassState::begin_step(int micro_batches) {
  if (stepping_) {
    throw UsageError(str("begin() was called in the middle of a step: ", chunks_.front().done,
                         " of ", micro_batches_,
                         " micro-batches are done. Call step() first, or discard() on all ranks to "
                         "drop the step"));
  }
  stepping_ = true;
  has_work_ = false;
  micro_batches_ = micro_batches;
  std::fill(chunks_.begin(), chunks_.end(), Chunk{});
  ties_taken_ = false;
}

void PassState::end_step() {
  stepping_ = failed_ = false;
  depth_ = 0;
  for (Chunk& chunk : chunks_) chunk.open = 0;
  for (Unit& unit : units_) {
    const int trainable = unit.trainable;
    unit = {};
    unit.trainable = trainable;
  }
}

void PassState::check_step() const {
  if (in_backward_) {
    throw UsageError("step() was called inside a backward pass. Call it after the pass has ended");
  }
  if (failed_) {
    throw UsageError("A backward pass of this step failed. Call discard() on all ranks first");
  }
  for (std::size_t c = 0; c < chunks_.size(); ++c) {
    if (chunks_[c].open == 0) continue;
    throw UsageError(str("step(): ", plural(chunks_[c].open, "deferred pass"), " of model chunk ",
                         c, " still need gradients. Call finish_pass(", c, ") for each of them"));
  }
}

void PassState::Count::end_forward() {
  sum += now;
  most = std::max(most, std::exchange(now, 0));
}

void PassState::enter_forward(int unit, bool grad_mode, bool differentiable) {
  if (unit == 0) {  // an earlier forward may have ended in an exception
    depth_ = 0;
    for (Unit& each : units_) each.entries.now = each.leaves.now = 0;
  }
  ++depth_;
  Unit& entered = units_[static_cast<std::size_t>(unit)];
  if (grad_mode) ++entered.entries.now;
  if (differentiable) ++entered.leaves.now;
}

void PassState::leave_forward() {
  if (depth_ > 0) --depth_;
  if (depth_ > 0) return;
  for (Unit& unit : units_) {
    unit.entries.end_forward();
    unit.leaves.end_forward();
  }
}

const PassState::Chunk& PassState::checked(int model_chunk) const {
  if (!stepping_) throw UsageError("No step has begun. Call begin() or backward() first");
  if (in_backward_) {
    throw UsageError(
        "backward() was called inside a backward pass of the same engine, by a hook or an autograd "
        "function. Call it after that pass has ended");
  }
  if (model_chunk < 0 || model_chunk >= std::ssize(chunks_)) {
    throw UsageError(
        str("backward: got model chunk ", model_chunk, ", must be 0 to ", chunks_.size() - 1));
  }
  const Chunk& chunk = chunks_[static_cast<std::size_t>(model_chunk)];
  if (failed_) {
    throw UsageError(
        "The previous backward pass failed, and some of its gradients may still be in flight. Call "
        "discard() on all ranks first");
  }
  return chunk;
}

bool PassState::reduces_next(const Chunk& chunk) const {
  return no_sync_ == 0 && (policy_ == ReducePolicy::each || chunk.done + 1 == micro_batches_);
}

bool PassState::reduces(int model_chunk) const {
  const Chunk& chunk = checked(model_chunk);
  const int begun = chunk.done + chunk.open;
  if (begun >= micro_batches_) {
    throw UsageError(str("backward was called ", begun + 1, " times, but a step has ",
                         micro_batches_, " micro-batches. Call step(), or set micro_batches"));
  }
  return reduces_next(chunk);
}

void PassState::begin_backward(const BackwardPass& pass) {
  pass_reduces_ = reduces(pass.model_chunk) && !pass.deferred;
  pass_ = pass;
  for (Unit& unit : units_) {
    unit.params_due = unit.trainable;
    unit.uses = pass.of_one_forward ? unit.entries.most : unit.entries.sum;
    unit.leaves_due = pass.of_one_forward ? unit.leaves.most : unit.leaves.sum;
  }
  in_backward_ = true;
}

void PassState::end_pass() {
  Chunk& chunk = chunks_[static_cast<std::size_t>(pass_.model_chunk)];
  has_work_ = true;
  chunk.unreduced = !pass_reduces_;
  ++(pass_.deferred ? chunk.open : chunk.done);
}

void PassState::end_backward() {
  in_backward_ = false;
  for (Unit& unit : units_) unit.entries.sum = unit.leaves.sum = 0;
  end_pass();
}

void PassState::fail_backward() {
  in_backward_ = false;
  failed_ = true;
}

void PassState::close_failed() {
  if (!std::exchange(failed_, false)) return;
  end_pass();
}

bool PassState::finish_pass(int model_chunk) {
  if (checked(model_chunk).open == 0) {
    throw UsageError(str("finish_pass(", model_chunk, "): that model chunk has no open deferred ",
                         "pass. Call backward() with deferred = true first"));
  }
  Chunk& chunk = chunks_[static_cast<std::size_t>(model_chunk)];
  const bool reduce = reduces_next(chunk);
  chunk.unreduced = !reduce;
  --chunk.open;
  ++chunk.done;
  return reduce;
}

bool PassState::deferred_open() const {
  return std::any_of(chunks_.begin(), chunks_.end(), [](const Chunk& c) { return c.open > 0; });
}

void PassState::left_backward(int unit) {
  int& due = units_[static_cast<std::size_t>(unit)].leaves_due;
  if (due > 0) --due;
}

void PassState::gradient_arrived(int unit) { --units_[static_cast<std::size_t>(unit)].params_due; }

bool PassState::unit_done(int unit) const {
  return at(unit).leaves_due == 0 && at(unit).params_due == 0;
}

int PassState::reductions_due(int model_chunk) const {
  const Chunk& chunk = chunks_[static_cast<std::size_t>(model_chunk)];
  const int missing = micro_batches_ - chunk.done;
  const int due = policy_ == ReducePolicy::each ? missing : (missing > 0 ? 1 : 0);
  return std::max(due, chunk.unreduced ? 1 : 0);
}

void PassState::all_reduced(int model_chunk) {
  Chunk& chunk = chunks_[static_cast<std::size_t>(model_chunk)];
  chunk.done = micro_batches_;
  chunk.unreduced = false;
}

bool PassState::take_ties() { return !std::exchange(ties_taken_, true); }

}  // namespace tessera::zero
