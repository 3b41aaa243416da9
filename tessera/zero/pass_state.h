#pragma once

#include <vector>

#include "tessera/core/state_layout.h"
#include "tessera/zero/backward_pass.h"

namespace tessera::zero {

// [Note: passes] The passes of a step, and what may follow what:
//
//   idle -- begin_step --> stepping -- begin_backward --> in backward -- end_backward --> stepping
//   stepping -- end_step --> idle
//   in backward -- fail_backward --> failed -- close_failed, end_step --> idle
//
// Forwards run in any state but the third; one inside a backward is a recomputation, and not
// counted here. What comes out of order throws UsageError, which says what to call instead, and
// changes nothing.
class PassState {
 public:
  // `trainable`: of each unit, the parameters that get a gradient.
  PassState(std::vector<int> trainable, int model_chunks, ReducePolicy policy);

  // The step.
  void begin_step(int micro_batches);
  void end_step();
  bool stepping() const { return stepping_; }
  // Returns whether the step has something to update with: a pass of this rank, or announce_data().
  bool has_work() const { return stepping_ && has_work_; }
  // begin() was given tokens, of which there may be none: no pass need follow.
  void announce_data() { has_work_ = true; }
  // Throws unless the optimizer may run: no backward has failed, no deferred pass is open.
  void check_step() const;

  // Forwards. Unit 0 is the root, and the outermost where it is used.
  void enter_forward(int unit, bool grad_mode, bool differentiable);
  void leave_forward();
  bool in_forward() const { return depth_ > 0; }

  // Backwards. reduces(): whether the gradients of the next pass of this model chunk are reduced;
  // throws where no pass may begin.
  bool reduces(int model_chunk) const;
  void begin_backward(const BackwardPass& pass);
  void end_backward();
  void fail_backward();
  bool in_backward() const { return in_backward_; }
  bool deferring() const { return pass_.deferred; }  // the pass under way
  bool failed() const { return failed_; }
  // A failed pass counts as done, as it does on the ranks where it went well.
  void close_failed();
  // A deferred pass of a model chunk has all its gradients. Whether they are reduced now.
  bool finish_pass(int model_chunk);
  // Gradients that come outside a backward belong to a deferred pass.
  bool deferred_open() const;

  // Units in the backward under way.
  int uses(int unit) const { return at(unit).uses; }
  void left_backward(int unit);     // its inputs have their gradients
  void gradient_arrived(int unit);  // all of one of its parameters
  bool unit_done(int unit) const;   // nothing of the pass reads its parameters any more

  // Reductions of a model chunk in which this rank has nothing, but others may: those of the
  // micro-batches that it did not have, and of gradients that wait.
  int reductions_due(int model_chunk) const;
  void all_reduced(int model_chunk);
  // True once in a step: copies of tied parameters are added up when all is reduced.
  bool take_ties();

  // Scopes in which backward only accumulates.
  void enter_no_sync() { ++no_sync_; }
  void leave_no_sync() { --no_sync_; }

 private:
  // A backward is that of all forwards since the last one (sum), or of one of them, as in a
  // pipeline, where it is the most in any (most).
  struct Count {
    int now = 0;  // in the forward under way
    int sum = 0, most = 0;
    void end_forward();
  };
  struct Unit {
    int trainable = 0;
    Count entries, leaves;  // leaves: left_backward() calls to come
    int uses = 0;           // entries of the forwards whose backward is under way
    int leaves_due = 0;     // left_backward() calls to come in it
    int params_due = 0;     // gradients to come, likewise
  };
  struct Chunk {
    int done = 0;            // passes
    int open = 0;            // deferred passes that finish_pass() has not ended
    bool unreduced = false;  // some gradient waits for the next reduction
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
  int depth_ = 0;  // of units entered and not left in forward
  bool in_backward_ = false;
  bool failed_ = false;
  BackwardPass pass_;  // the last that began
  bool pass_reduces_ = false;
  bool ties_taken_ = false;
  int no_sync_ = 0;
};

}  // namespace tessera::zero
