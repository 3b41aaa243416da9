#pragma once

#include <vector>

#include "tessera/core/state_layout.h"
#include "tessera/zero/engine_of_part.h"

namespace tessera::zero {

// [Note: passes] State machine of the passes of a step:
//
//   idle -- begin_step --> stepping -- begin_backward --> in backward -- end_backward --> stepping
//   stepping -- end_step --> idle
//   in backward -- fail_backward --> failed -- close_failed, end_step --> idle
//
// Forwards run in any state except "in backward"; a forward inside a backward is a recomputation,
// which is not counted here. A call out of order throws UsageError, which names the call to make
// instead, and changes nothing.
class PassState {
 public:
  // `trainable`: by unit, the number of parameters that get a gradient.
  PassState(std::vector<int> trainable, int model_chunks, ReducePolicy policy);

  // The step.
  void begin_step(int micro_batches);
  void end_step();
  bool stepping() const { return stepping_; }
  // Returns true if this rank ran a pass in this step or called announce_data().
  bool has_work() const { return stepping_ && has_work_; }
  // Called if begin() was given tokens. Their number may be 0, so no pass has to follow.
  void announce_data() { has_work_ = true; }
  // Throws unless the optimizer may run: no backward has failed, no deferred pass is open.
  void check_step() const;

  // Forwards. Unit 0 is the root; if it is used, it is the outermost unit.
  void enter_forward(int unit, bool grad_mode, bool differentiable);
  void leave_forward();
  bool in_forward() const { return depth_ > 0; }

  // Backwards. reduces() returns true if the gradients of the next pass of this model chunk are
  // reduced; it throws if no pass may begin.
  bool reduces(int model_chunk) const;
  void begin_backward(const BackwardPass& pass);
  void end_backward();
  void fail_backward();
  bool in_backward() const { return in_backward_; }
  bool deferring() const { return pass_.deferred; }  // the current pass
  bool failed() const { return failed_; }
  // Counts a failed pass as done, as ranks do on which it succeeded.
  void close_failed();
  // Ends a deferred pass of a model chunk. Returns true if its gradients are reduced now.
  bool finish_pass(int model_chunk);
  // Returns true if a deferred pass is open. It owns gradients that arrive outside a backward.
  bool deferred_open() const;

  // Number of uses of a unit in the current backward, and events that complete it.
  int uses(int unit) const { return at(unit).uses; }
  void left_backward(int unit);     // the gradients of its inputs are computed
  void gradient_arrived(int unit);  // the gradient of one of its parameters is complete
  bool unit_done(int unit) const;   // nothing in the pass reads its parameters any more

  // Returns the number of reductions of a model chunk that this rank must join without a new pass:
  // those of micro-batches that it did not have, and of gradients not yet reduced.
  int reductions_due(int model_chunk) const;
  void all_reduced(int model_chunk);
  // Returns true on the first call in a step. Tied parameters are summed after all reductions.
  bool take_ties();

  // Scopes in which backward only accumulates.
  void enter_no_sync() { ++no_sync_; }
  void leave_no_sync() { --no_sync_; }

 private:
  // Count of events per forward. A backward covers all forwards since the last backward (sum), or
  // one of them, as in a pipeline (most: the maximum over forwards).
  struct Count {
    int now = 0;  // in the current forward
    int sum = 0, most = 0;
    void end_forward();
  };
  struct Unit {
    int trainable = 0;
    Count entries, leaves;  // leaves: expected left_backward() calls
    int uses = 0;           // entries in the forwards of the current backward
    int leaves_due = 0;     // left_backward() calls still expected in the current backward
    int params_due = 0;     // gradients still expected in the current backward
  };
  struct Chunk {
    int done = 0;            // passes
    int open = 0;            // deferred passes that finish_pass() has not ended
    bool unreduced = false;  // some gradients are not reduced yet
  };
  const Unit& at(int unit) const { return units_[static_cast<std::size_t>(unit)]; }
  const Chunk& checked(int model_chunk) const;
  bool reduces_next(const Chunk& chunk) const;
  void end_pass();

  const ReducePolicy policy_;
  std::vector<Unit> units_;
  std::vector<Chunk> chunks_;
  bool stepping_ = false;
  bool has_work_ = false;
  int micro_batches_ = 1;
  int depth_ = 0;  // units entered and not yet left in forward
  bool in_backward_ = false;
  bool failed_ = false;
  BackwardPass pass_;  // the current or last pass
  bool pass_reduces_ = false;
  bool ties_taken_ = false;
  int no_sync_ = 0;
};

}  // namespace tessera::zero
