#pragma once

#include <array>
#include <memory>
#include <vector>

#include "tessera/comm/group.h"
#include "tessera/nn/gradient_place.h"
#include "tessera/zero/buffers.h"
#include "tessera/zero/hybrid_sum.h"
#include "tessera/zero/plan.h"
#include "tessera/zero/power_sgd.h"

namespace tessera::zero {

// Gradients: from where autograd leaves them to where the optimizer reads their sum over all ranks.
//
// [Note: two ways] Where gradients are reduced once a step (ReducePolicy::last), the whole gradient
// is kept until then, at any stage: `.grad` is a view of a flat buffer, and the collective works on
// that buffer (in_place). Otherwise autograd's own tensors are
// copied into one of two buckets when all of a bucket's are there, freed, and the bucket's sum is
// added to what is kept: the rank's shards, or everything. Where gradients travel in fewer bits
// than they are kept in, both ways go through the two buckets.
//
// With replicas the sum of a bucket goes to memory of its own, beside one of the two buckets, and
// from there to where it is kept.
//
// Buckets are started in one order on all ranks. What a rank did not compute counts as zero.
class Reducer {
 public:
  Reducer(Plan& plan, const Options& options, const DataGroups& groups, const Buffers& buffers);

  // A step: begin_step, then for each backward pass of a model chunk begin, gradients as they come,
  // and end; then finish. `reduce`: this pass's (and all waiting) gradients of the model chunk go
  // out now.
  void begin_step();
  void begin_pass(int model_chunk, bool reduce);
  // [Note: gradient places] in nn/gradient_place.h: where autograd's result is to lie, for who can
  // put it there. Nothing where gradients go through buckets, or have another type than the
  // parameter, to which autograd would round them; nothing for the second use of a parameter.
  // `depth`: of the recomputed segments around the backward that asks.
  nn::GradientPlace::Place take_place(int param, int depth);
  // A backward around the one at `depth` has written to the place, and not yet told autograd.
  bool taken_outside(int param, int depth) const {
    const int taker = taken_[static_cast<std::size_t>(param)];
    return taker != kNobody && taker < depth;
  }
  // Autograd has left a gradient in param.tensor.grad(). `last`: none will follow in this pass.
  void on_gradient(int param, bool last);
  void end_pass();
  void finish();

  // After finish(): what this rank updates with (all of it at stage 0), flat, without padding.
  at::Tensor grad_shard(int param) const;
  // This rank's own shard of the sum, at any stage.
  at::Tensor owned_grad(int param) const;
  // Which parameters got a gradient on this rank in this step.
  const std::vector<bool>& used() const { return used_; }
  // Bytes of all gradients as a step sends them; of PowerSGD, after its warm-up.
  std::int64_t traveling_bytes() const;
  // [Note: what is left out] What compression left out of earlier steps is not to count: they were
  // given up, or belong to another run. `steps`: how many this one has made.
  void resume(std::int64_t steps);
  // Views of what PowerSGD keeps between two steps. Empty: nothing is compressed; `now`: nor has
  // been, in the steps so far.
  std::vector<LowRankGradients::Kept> left_out(bool now) const;
  // Whether all of a parameter's gradient of this pass is there.
  bool arrived(int param) const { return arrived_[static_cast<std::size_t>(param)]; }

  Stopwatch& exposed() { return exposed_; }

 private:
  struct State {      // of a bucket, in this pass
    int pending = 0;  // parameters whose gradient has not come
    bool started = false;
    bool accumulated = false;  // what is kept has a sum of this step already
    comm::Work work;           // in_place
  };
  struct BucketSlot {  // one of the two buckets in flight
    Buffer bytes;
    Buffer sum;  // with replicas: this rank's shards of the sum, side by side
    int bucket = -1;
    comm::Work work;
    enum { done, copy, add } then = done;  // with the sum, when it is there
  };
  void start_ready();
  void start(int bucket);
  void start_in_place(int bucket);
  void start_from_kept(int bucket);
  void start_bucket(int bucket);
  // Of gradients, each rank its shard where the optimizer is sharded; else `to` is `from`.
  comm::Work sum_over_ranks(const at::Tensor& to, const at::Tensor& from, const Range& range);
  BucketSlot& take_slot();
  void retire(BucketSlot& slot);
  void wait(const comm::Work& work);
  Param& param(int index) { return plan_.params[static_cast<std::size_t>(index)]; }
  at::Tensor slot_tensor(const BucketSlot& slot, const Range& range) const;
  at::Tensor sum_tensor(const BucketSlot& slot, const Range& range) const;
  at::Tensor grad_range(const Range& range) const;
  bool narrow(const Range& range) const;  // it travels in fewer bits than it is kept in

  Plan& plan_;
  const Sharding sharding_;
  const bool in_place_;
  const bool sharded_;  // only this rank's shards are kept
  const bool overlap_;
  const PowerSgd power_sgd_;
  std::vector<Buffer> grads_;                   // per space: flat, or this rank's shards
  std::vector<at::Tensor> views_;               // in_place: what .grad becomes
  std::unique_ptr<LowRankGradients> low_rank_;  // null: not asked for
  std::unique_ptr<HybridSum> hybrid_;           // null: no replicas
  std::int64_t steps_ = 0;                      // that count, this one too
  bool compress_ = false;                       // this step is beyond the warm-up
  std::array<BucketSlot, 2> slots_;
  std::size_t next_slot_ = 0;
  std::vector<State> states_;
  std::vector<bool> used_, arrived_;
  static constexpr int kNobody = -1;
  std::vector<int> taken_;  // the depth at which the place of a gradient was taken
  int model_chunk_ = 0;
  std::size_t next_ = 0;  // bucket to start, if it is of the model chunk
  bool reduce_ = false;
  Stopwatch exposed_;
};

}  // namespace tessera::zero
