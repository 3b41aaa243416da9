#include "tessera/zero/reducer.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/message_of.h"
#include "tessera/core/text.h"
#include "tessera/nn/gpu.h"

namespace tessera::zero {
namespace {

at::TensorOptions grad_options(const Space& space) {
  return at::device(space.device).dtype(space.grad_dtype);
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.const_data_ptr() == b.const_data_ptr() &&
         a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Runs a part of a hook. Errors get the name of the bucket; those about another rank have it in the
// label of the call.
template <typename F>
void run_hook(const GradBucket& bucket, const F& part) {
  const at::NoGradGuard no_grad;
  const auto where = [&] {
    return str("reduce_hook, bucket ", bucket.index, " (", bucket.label, ")");
  };
  try {
    part();
  } catch (const PeerError&) {
    throw;
  } catch (const UsageError& error) {
    throw error.within(where());
  } catch (const std::exception& error) {
    throw Error(str(where(), ": ", message_of(error)));
  }
}

}  // namespace

Reducer::Reducer(Plan& plan, const Options& options, const DataGroups& groups,
                 const Buffers& buffers)
    : plan_(plan),
      sharding_(sharding_of_stage(options.stage)),
      in_place_(options.reduce.value_or(default_reduce_policy(options.stage)) ==
                ReducePolicy::last),
      sharded_(sharding_.grads && !in_place_),
      overlap_(options.overlap_grad_reduce),
      hook_(options.reduce_hook),
      states_(plan.buckets.size()),
      used_(plan.params.size()),
      arrived_(plan.params.size()),
      taken_(plan.params.size(), kNotTaken) {
  for (const Space& space : plan.spaces) {
    if (!space.trainable) {
      grads_.emplace_back();
      continue;
    }
    const std::int64_t count = sharded_ ? space.size / space.ranks() : space.size;
    grads_.push_back(in_place_ ? buffers.exposed(space.groups.all, count, grad_options(space),
                                                 MemoryCategory::grads)
                               : buffers.own(count, grad_options(space), MemoryCategory::grads));
  }
  views_.resize(plan.params.size());
  if (in_place_) {
    for (std::size_t i = 0; i < plan.params.size(); ++i) {
      const Param& p = plan.params[i];
      if (p.bucket >= 0) views_[i] = view_of(p, grads_[static_cast<std::size_t>(p.space)].tensor);
    }
  }
  for (std::size_t b = 0; hook_ && groups.all.size() > 1 && b < plan.buckets.size(); ++b) {
    const Range& range = plan.buckets[b].range;
    GradBucket& bucket = hooked_.emplace_back();
    bucket.index = static_cast<int>(b);
    bucket.label = range.label;
    bucket.grads = grad_range(range);
    for (const int index : range.params) {
      bucket.params.push_back({param(index).name, views_[static_cast<std::size_t>(index)]});
    }
  }
  if (groups.hybrid() && sharding_.optimizer) {
    hybrid_ = std::make_unique<HybridSum>(groups.replicate);
  }
  for (const bool experts : {false, true}) make_slots(experts, groups, buffers);
}

// Buckets of experts have slots of their own: ranks with other experts may have other sizes.
void Reducer::make_slots(bool experts, const DataGroups& groups, const Buffers& buffers) {
  std::int64_t largest = 0, largest_sum = 0;
  for (const Bucket& bucket : plan_.buckets) {
    if (plan_.space_of(bucket.range).of_experts != experts) continue;
    if (!in_place_ || narrow(bucket.range)) largest = std::max(largest, bucket.bytes);
    largest_sum = std::max(largest_sum, bucket.bytes / plan_.space_of(bucket.range).ranks());
  }
  if (largest_sum == 0) return;
  const at::TensorOptions bytes = at::device(plan_.params.front().tensor.device()).dtype(at::kByte);
  for (BucketSlot& slot : experts ? expert_slots_ : slots_) {
    if (largest > 0) {
      slot.bytes = buffers.exposed(experts ? plan_.expert_groups->all : groups.all, largest, bytes,
                                   MemoryCategory::buffers);
    }
    if (hybrid_) slot.sum = buffers.own(largest_sum, bytes, MemoryCategory::buffers);
  }
}

void Reducer::wait(const comm::Work& work) {
  exposed_.time([&] { work.wait(); });
}

void Reducer::begin_step() {
  hook_calls_ = 0;
  std::fill(used_.begin(), used_.end(), false);
  for (Param& p : plan_.params) p.tensor.mutable_grad().reset();
  for (State& state : states_) state.accumulated = false;
}

void Reducer::begin_pass(int model_chunk, bool reduce) {
  reduce_ = reduce;
  model_chunk_ = model_chunk;
  next_ = 0;
  for (std::size_t b = 0; b < states_.size(); ++b) {
    if (plan_.buckets[b].model_chunk != model_chunk) continue;
    const std::vector<int>& params = plan_.buckets[b].range.params;
    states_[b].started = false;
    states_[b].pending = static_cast<int>(params.size());
    for (const int index : params) {
      arrived_[static_cast<std::size_t>(index)] = false;
      taken_[static_cast<std::size_t>(index)] = kNotTaken;
    }
  }
}

nn::GradientPlace::Place Reducer::take_place(int index, int depth) {
  const auto i = static_cast<std::size_t>(index);
  Param& p = plan_.params[i];
  if (!in_place_ || taken_[i] != kNotTaken || p.model_chunk != model_chunk_ ||
      states_[static_cast<std::size_t>(p.bucket)].started ||
      views_[i].scalar_type() != p.tensor.scalar_type()) {
    return {};
  }
  at::Tensor& grad = p.tensor.mutable_grad();
  const bool add = grad.defined();
  if (add && !grad.is_same(views_[i])) return {};
  taken_[i] = depth;
  grad.reset();  // the result includes its value, so autograd must not add it again
  return {views_[i], add};
}

void Reducer::on_gradient(int index, bool last) {
  const auto i = static_cast<std::size_t>(index);
  Param& p = plan_.params[i];
  at::Tensor& grad = p.tensor.mutable_grad();
  if (grad.layout() != at::kStrided) {
    throw UsageError(str("The gradient of ", quote(p.name),
                         " is sparse, but the engine reduces only dense gradients. Make its "
                         "embedding with sparse(false)"));
  }
  if (p.model_chunk != model_chunk_) {
    throw UsageError(str("backward of model chunk ", model_chunk_, " reached ", quote(p.name),
                         ", a parameter of model chunk ", p.model_chunk,
                         ". Model chunks must not share parameters"));
  }
  State& state = states_[static_cast<std::size_t>(p.bucket)];
  if (state.started) {
    throw UsageError(
        str("The gradient of ", quote(p.name),
            " was computed twice in one backward pass, the second time after it had been sent: "
            "the parameter is used in several recomputed segments, or inside and outside of one. "
            "Set overlap_grad_reduce = false"));
  }
  used_[i] = true;
  if (hybrid_) hybrid_->poll();
  if (in_place_) {
    if (!grad.is_same(views_[i])) {
      if (!same_memory(grad, views_[i])) nn::gpu::copy(views_[i], grad);
      grad = views_[i];
    }
    taken_[i] = kNotTaken;
  } else if ((!reduce_ || !last) &&
             grad.scalar_type() != plan_.spaces[static_cast<std::size_t>(p.space)].grad_dtype) {
    grad = grad.to(plan_.spaces[static_cast<std::size_t>(p.space)].grad_dtype);
  }
  if (!last || arrived_[i]) return;
  arrived_[i] = true;
  if (--state.pending == 0 && reduce_ && overlap_) start_ready();
}

// Starts complete buckets in plan order, which is the same on all ranks.
void Reducer::start_ready() {
  for (; next_ < states_.size(); ++next_) {
    if (plan_.buckets[next_].model_chunk != model_chunk_) continue;
    if (states_[next_].pending > 0) return;
    start(static_cast<int>(next_));
  }
}

void Reducer::end_pass() {
  if (!reduce_) return;
  for (; next_ < states_.size(); ++next_) {
    if (plan_.buckets[next_].model_chunk == model_chunk_) start(static_cast<int>(next_));
  }
}

void Reducer::start(int bucket) {
  State& state = states_[static_cast<std::size_t>(bucket)];
  state.started = true;
  in_place_ ? start_in_place(bucket) : start_bucket(bucket);
  state.accumulated = true;
}

void Reducer::start_in_place(int bucket) {
  const Range& range = plan_.buckets[static_cast<std::size_t>(bucket)].range;
  for (const int index : range.params) {
    const auto i = static_cast<std::size_t>(index);
    if (!used_[i]) views_[i].zero_();
  }
  if (!hooked_.empty()) return start_hook(bucket);
  if (narrow(range) || hybrid_) return start_from_kept(bucket);
  const at::Tensor flat = grad_range(range);
  states_[static_cast<std::size_t>(bucket)].sums = sum_over_ranks(flat, flat, range);
}

void Reducer::start_hook(int index) {
  const auto b = static_cast<std::size_t>(index);
  GradBucket& bucket = hooked_[b];
  if (nn::gpu::recording(bucket.grads)) {
    throw UsageError(
        "A step with a reduce_hook was captured, but a replay does not call the hook. "
        "Run such steps without CUDA graphs");
  }
  bucket.last = hook_calls_ + 1 == hooked_.size();
  const comm::Group& data = plan_.space_of(plan_.buckets[b].range).groups.all;
  run_hook(bucket, [&] { states_[b].sums = hook_(bucket, data); });
  ++hook_calls_;
}

void Reducer::complete(int index) {
  const auto b = static_cast<std::size_t>(index);
  PendingSums& sums = states_[b].sums;
  if (const auto* const work = std::get_if<comm::Work>(&sums)) {
    wait(*work);
  } else {
    exposed_.time([&] { run_hook(hooked_[b], std::get<std::function<void()>>(sums)); });
  }
  sums = {};
}

// Returns the next of the two slots, after its bucket has been retired.
Reducer::BucketSlot& Reducer::take_slot(const Range& range) {
  Slots& slots = plan_.space_of(range).of_experts ? expert_slots_ : slots_;
  BucketSlot& slot = slots[std::exchange(slots.next, 1 - slots.next)];
  retire(slot);
  return slot;
}

// Reduces a bucket from the buffer of the whole gradient. If it is sent in fewer bits, it is first
// rounded into a slot; with replicas, the result goes to the slot's sum.
void Reducer::start_from_kept(int bucket) {
  const Range& range = plan_.buckets[static_cast<std::size_t>(bucket)].range;
  BucketSlot& slot = take_slot(range);
  at::Tensor flat = grad_range(range);
  if (narrow(range)) {
    flat = slot_tensor(slot, range);
    nn::gpu::copy(flat, grad_range(range));
  }
  slot.bucket = bucket;
  slot.then = BucketSlot::copy;
  slot.work = sum_over_ranks(hybrid_ ? sum_tensor(slot, range) : flat, flat, range);
}

void Reducer::start_bucket(int bucket) {
  const Range& range = plan_.buckets[static_cast<std::size_t>(bucket)].range;
  State& state = states_[static_cast<std::size_t>(bucket)];
  BucketSlot& slot = take_slot(range);
  const at::Tensor flat = slot_tensor(slot, range);
  for (const int index : range.params) {
    Param& p = param(index);
    const at::Tensor to = view_of(p, flat, range.begin);
    at::Tensor& grad = p.tensor.mutable_grad();
    if (grad.defined()) {
      nn::gpu::copy(to, grad);
      grad.reset();
    } else {
      to.zero_();
    }
  }
  slot.bucket = bucket;
  slot.then = state.accumulated ? BucketSlot::add : BucketSlot::copy;
  // The first sum of a step is written directly to the gradient buffer.
  const bool straight = sharding_.optimizer && sharded_ && !state.accumulated && !narrow(range);
  if (straight) slot.then = BucketSlot::done;
  const at::Tensor to = straight ? grad_range(range) : hybrid_ ? sum_tensor(slot, range) : flat;
  slot.work = sum_over_ranks(to, flat, range);
}

comm::Work Reducer::sum_over_ranks(const at::Tensor& to, const at::Tensor& from,
                                   const Range& range) {
  comm::Call call;
  call.label = range.label;
  const DataGroups& groups = plan_.space_of(range).groups;
  if (!sharding_.optimizer) return groups.all.all_reduce(from, call);
  call.parts = range.parts;
  return hybrid_ ? hybrid_->start(groups, to, from, call)
                 : groups.shard.reduce_scatter(to, from, call);
}

// Waits for the bucket in a slot and copies or adds its sum to the gradient buffer.
void Reducer::retire(BucketSlot& slot) {
  if (slot.bucket < 0) return;
  const auto b = static_cast<std::size_t>(std::exchange(slot.bucket, -1));
  wait(std::exchange(slot.work, {}));
  if (slot.then == BucketSlot::done) return;
  const Range& range = plan_.buckets[b].range;
  const Space& space = plan_.space_of(range);
  const at::Tensor flat = hybrid_ ? sum_tensor(slot, range) : slot_tensor(slot, range);
  const at::Tensor grads = grad_range(range);
  const int ranks = space.ranks(), rank = space.groups.shard.rank();
  const auto put = [&](const at::Tensor& to, const at::Tensor& from) {
    slot.then == BucketSlot::add ? static_cast<void>(to.add_(from)) : nn::gpu::copy(to, from);
  };
  if (!sharding_.optimizer) return put(grads, flat);
  for (const int index : range.params) {
    const Param& p = param(index);
    const std::int64_t at = p.offset - range.begin;
    // Offsets of this rank's shard in a buffer of its own shards, and in one of all ranks' shards.
    const std::int64_t alone = at / ranks, among = at + rank * p.shard;
    put(grads.narrow(0, sharded_ ? alone : among, p.shard),
        flat.narrow(0, hybrid_ ? alone : among, p.shard));
  }
}

void Reducer::finish() {
  for (std::size_t b = 0; in_place_ && b < states_.size(); ++b) complete(static_cast<int>(b));
  // Oldest first: both may hold the same bucket, from two micro-batches.
  for (Slots* const slots : {&slots_, &expert_slots_}) {
    retire((*slots)[slots->next]);
    retire((*slots)[1 - slots->next]);
  }
}

bool Reducer::narrow(const Range& range) const {
  const Space& space = plan_.spaces[static_cast<std::size_t>(range.space)];
  return space.travel_dtype != space.grad_dtype;
}

at::Tensor Reducer::slot_tensor(const BucketSlot& slot, const Range& range) const {
  const Space& space = plan_.spaces[static_cast<std::size_t>(range.space)];
  const std::int64_t count = range.end - range.begin;
  const auto size = static_cast<std::int64_t>(c10::elementSize(space.travel_dtype));
  return slot.bytes.tensor.narrow(0, 0, count * size).view(space.travel_dtype);
}

at::Tensor Reducer::sum_tensor(const BucketSlot& slot, const Range& range) const {
  const Space& space = plan_.space_of(range);
  const std::int64_t count = (range.end - range.begin) / space.ranks();
  const auto size = static_cast<std::int64_t>(c10::elementSize(space.travel_dtype));
  return slot.sum.tensor.narrow(0, 0, count * size).view(space.travel_dtype);
}

at::Tensor Reducer::grad_range(const Range& range) const {
  const at::Tensor& grads = grads_[static_cast<std::size_t>(range.space)].tensor;
  const std::int64_t over = sharded_ ? plan_.space_of(range).ranks() : 1;
  return grads.narrow(0, range.begin / over, (range.end - range.begin) / over);
}

at::Tensor Reducer::grad_shard(int index) const {
  const Param& p = plan_.params[static_cast<std::size_t>(index)];
  if (sharding_.optimizer) return owned_grad(index);
  return grads_[static_cast<std::size_t>(p.space)].tensor.narrow(0, p.offset, p.numel);
}

at::Tensor Reducer::owned_grad(int index) const {
  const Param& p = plan_.params[static_cast<std::size_t>(index)];
  const at::Tensor& grads = grads_[static_cast<std::size_t>(p.space)].tensor;
  return grads.narrow(0, plan_.own_offset(p, sharded_), plan_.own_shard(p).size);
}

}  // namespace tessera::zero
