#pragma once

#include <array>
#include <memory>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/nn/gradient_place.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/hybrid_sum.h"
#include "tessera/zero/options.h"
#include "tessera/zero/plan.h"

namespace tessera::zero {

// Reduction of gradients, from autograd's results to the sums over all ranks that the optimizer
// reads.
//
// [Note: two ways] If gradients are reduced once per step (ReducePolicy::last), the whole gradient
// is kept until then, at any stage: `.grad` is a view of a flat buffer, and the collective works on
// that buffer (in_place). Otherwise, when all gradients of a bucket are complete, autograd's
// tensors are copied into one of two slots and freed, and the sum of the bucket is added to the
// gradient buffer: the rank's shards, or everything. If gradients are sent in fewer bits than they
// are kept in, both ways use the two slots.
//
// With replicas the sum of a bucket is written to a second buffer of the slot, and from there to
// the gradient buffer.
//
// All ranks start buckets in the same order. A gradient that a rank did not compute counts as zero.
class Reducer {
 public:
  Reducer(Plan& plan, const Options& options, const DataGroups& groups, const Buffers& buffers);

  // Order of calls in a step: begin_step(); for each backward pass of a model chunk begin_pass(),
  // on_gradient() for each gradient, end_pass(); finish(). `reduce`: reduce the gradients of this
  // pass, and all unreduced gradients of the model chunk.
  void begin_step();
  void begin_pass(int model_chunk, bool reduce);
  // [Note: gradient places] in nn/gradient_place.h. Returns the memory to write a gradient to.
  // Empty if gradients go through slots, if their type differs from the parameter's, to which
  // autograd would round them, or for the second use of a parameter. `depth`: number of recomputed
  // segments around the caller's backward.
  nn::GradientPlace::Place take_place(int param, int depth);
  // Returns true if a backward outside the one at `depth` has written to the place, and autograd
  // has not received that gradient yet.
  bool taken_outside(int param, int depth) const {
    const int taker = taken_[static_cast<std::size_t>(param)];
    return taker != kNotTaken && taker < depth;
  }
  // Processes a gradient in param.tensor.grad(). `last`: none will follow in this pass.
  void on_gradient(int param, bool last);
  void end_pass();
  void finish();

  // After finish(), returns the gradient of the elements that this rank updates: its shard, or all
  // of them at stage 0; flat, without padding.
  at::Tensor grad_shard(int param) const;
  // Returns this rank's shard of the sum, at any stage.
  at::Tensor owned_grad(int param) const;
  // Returns the parameters that got a gradient on this rank in this step.
  const std::vector<bool>& used() const { return used_; }
  // Returns true if the gradient of a parameter is complete in this pass.
  bool arrived(int param) const { return arrived_[static_cast<std::size_t>(param)]; }

  Stopwatch& exposed() { return exposed_; }

 private:
  struct State {      // of a bucket, in this pass
    int pending = 0;  // parameters whose gradient is not complete
    bool started = false;
    bool accumulated = false;  // the gradient buffer already holds a sum of this step
    PendingSums sums;          // in_place
  };
  struct BucketSlot {  // one of the two buckets in flight
    Buffer bytes;
    Buffer sum;  // with replicas: this rank's shards of the sum, contiguous
    int bucket = -1;
    comm::Work work;
    enum { done, copy, add } then = done;  // action when the sum is complete
  };
  void start_ready();
  void start(int bucket);
  void start_in_place(int bucket);
  void start_hook(int bucket);
  void start_from_kept(int bucket);
  void start_bucket(int bucket);
  // Sums gradients over ranks. If the optimizer is sharded, each rank gets its shard in `to`;
  // otherwise `to` must be `from`.
  comm::Work sum_over_ranks(const at::Tensor& to, const at::Tensor& from, const Range& range);
  // Waits for the reduction that was started in place.
  void complete(int bucket);
  void make_slots(bool experts, const DataGroups& groups, const Buffers& buffers);
  BucketSlot& take_slot(const Range& range);
  void retire(BucketSlot& slot);
  void wait(const comm::Work& work);
  Param& param(int index) { return plan_.params[static_cast<std::size_t>(index)]; }
  at::Tensor slot_tensor(const BucketSlot& slot, const Range& range) const;
  at::Tensor sum_tensor(const BucketSlot& slot, const Range& range) const;
  at::Tensor grad_range(const Range& range) const;
  bool narrow(const Range& range) const;  // true if sent in fewer bits than it is kept in

  Plan& plan_;
  const Sharding sharding_;
  const bool in_place_;
  const bool sharded_;  // only this rank's shards are kept
  const bool overlap_;
  const ReduceHook hook_;
  std::vector<Buffer> grads_;          // per space: flat, or this rank's shards
  std::vector<at::Tensor> views_;      // in_place: what .grad becomes
  std::vector<GradBucket> hooked_;     // arguments of the hook; empty: no hook
  std::size_t hook_calls_ = 0;         // in this step
  std::unique_ptr<HybridSum> hybrid_;  // null: no replicas
  struct Slots : std::array<BucketSlot, 2> {
    std::size_t next = 0;
  };
  Slots slots_, expert_slots_;
  std::vector<State> states_;
  std::vector<bool> used_, arrived_;
  static constexpr int kNotTaken = -1;
  std::vector<int> taken_;  // per parameter: depth at which its gradient place was taken
  int model_chunk_ = 0;
  std::size_t next_ = 0;  // next bucket to start, if it belongs to the model chunk
  bool reduce_ = false;
  Stopwatch exposed_;
};

}  // namespace tessera::zero
