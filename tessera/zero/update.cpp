#include "tessera/zero/update.h"

#include <ATen/ops/isfinite.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/kernels/optimizer.h"
#include "tessera/zero/optimizers.h"

namespace tessera::zero {

Update::Update(const UpdateContext& context)
    : plan_(context.plan),
      buffers_(context.buffers),
      gatherer_(context.gatherer),
      sharded_(sharding_of_stage(context.options.stage).optimizer),
      seed_(context.options.seed) {
  const auto& [plan, options, groups, buffers, gatherer] = context;
  if (options.axes.counted) {
    for (const Param& p : plan.params) counted_.push_back(options.axes.counted(p.name));
  }
  updates_.resize(plan.params.size());
  master_.resize(plan.spaces.size());
  for (std::size_t s = 0; s < plan.spaces.size(); ++s) {
    const Space& space = plan.spaces[s];
    if (!space.trainable || !space.master) continue;
    if (options.offload.optimizer != StatePlacement::device) continue;
    master_[s] = buffers.own(sharded_ ? space.size / space.ranks() : space.size,
                             at::device(space.device).dtype(at::kFloat), MemoryCategory::optimizer);
    // Gatherer::fill() provides the values, before the parameters are rounded.
  }
}

std::vector<Buffer> Update::make_state() const {
  std::vector<Buffer> state(plan_.spaces.size());
  for (std::size_t s = 0; s < plan_.spaces.size(); ++s) {
    const Space& space = plan_.spaces[s];
    if (!space.trainable) continue;
    const at::ScalarType type = space.dtype == at::kDouble ? at::kDouble : at::kFloat;
    state[s] = buffers_.own(sharded_ ? space.size / space.ranks() : space.size,
                            at::device(space.device).dtype(type), MemoryCategory::optimizer);
  }
  return state;
}

ShardRange Update::held(const Param& p) const {
  return sharded_ ? plan_.own_shard(p) : ShardRange{0, p.numel};
}

at::Tensor Update::shard_of_state(const std::vector<Buffer>& state, int index) const {
  const Param& p = param(index);
  const at::Tensor& flat = state[static_cast<std::size_t>(p.space)].tensor;
  return flat.narrow(0, sharded_ ? plan_.own_offset(p, true) : p.offset, held(p).size);
}

at::Tensor Update::master_shard(int index) const {
  const bool exists = master_[static_cast<std::size_t>(param(index).space)].tensor.defined();
  return exists ? shard_of_state(master_, index) : at::Tensor();
}

void Update::write_master(int index, std::int64_t begin, const at::Tensor& values) {
  const at::Tensor master = master_shard(index);
  if (master.defined()) master.narrow(0, begin, values.numel()).copy_(values);
}

// [Note: counted elements] A rank counts its own shard in the norm. Replicas own the same shard, so
// each of them counts one part of it. If the shard divides into aligned parts, these are the shards
// of the same ranks without replicas, and the norm has the same bits.
ShardRange Update::counted_shard(const Param& p) const {
  ShardRange own = plan_.own_shard(p);
  const comm::Group& replicate = plan_.space_of(p).groups.replicate;
  if (replicate.size() == 1) return own;
  const ShardRange part =
      nth_shard(own.size, shard_size(p.shard, replicate.size()), replicate.rank());
  return {own.begin + part.begin, part.size};
}

void Update::each_counted(const Reducer& reducer,
                          const std::function<void(int, const at::Tensor& grad)>& visit) const {
  for (std::size_t i = 0; i < plan_.params.size(); ++i) {
    if (plan_.params[i].bucket < 0) continue;
    const at::Tensor grad = reducer.owned_grad(static_cast<int>(i));
    const std::int64_t offset = plan_.own_shard(plan_.params[i]).begin;
    const ShardRange mine = counted_shard(plan_.params[i]);
    const auto visit_range = [&](std::int64_t begin, std::int64_t end) {
      begin = std::max(begin, mine.begin), end = std::min(end, mine.begin + mine.size);
      if (begin < end) visit(static_cast<int>(i), grad.narrow(0, begin - offset, end - begin));
    };
    if (counted_.empty()) {
      visit_range(0, plan_.params[i].numel);
    } else {
      for (const Run& run : counted_[i]) visit_range(run.local, run.local + run.count);
    }
  }
}

int Update::last_non_finite(const Reducer& reducer) const {
  int last = -1;
  each_counted(reducer, [&](int param, const at::Tensor& values) {
    if (!at::isfinite(values).all().item<bool>()) last = param;
  });
  return last;
}

double Update::sum_of_squares(const Reducer& reducer) const {
  double sum = 0;
  at::Tensor elsewhere;  // sum over tensors that no kernel supports
  each_counted(reducer, [&](int, const at::Tensor& values) {
    if (const auto type = kernel_type(values)) {
      sum += kernels::sum_of_squares(values.const_data_ptr(), *type,
                                     static_cast<std::size_t>(values.numel()));
    } else {
      const at::Tensor squares = values.to(at::kDouble).square().sum();
      elsewhere = elsewhere.defined() ? elsewhere + squares : squares;
    }
  });
  return elsewhere.defined() ? sum + elsewhere.item<double>() : sum;
}

void Update::resume(std::int64_t steps, std::vector<std::int64_t> updates) {
  steps_ = steps;
  updates_ = std::move(updates);
}

ShardTensors Update::tensors(int index, const Reducer& reducer) const {
  ShardTensors shard;
  shard.param = gatherer_.param_shard(index);
  shard.master = master_shard(index);
  shard.grad = reducer.grad_shard(index);
  shard.begin = held(param(index)).begin;
  shard.stream = stream_of(param(index).name);
  shard.seed = seed_;
  return shard;
}

rules::Step Update::step_of(int index, double lr, double weight_decay, double scale) const {
  const ParamPolicy& policy = param(index).policy;
  // A parameter that is not used in every step has fewer updates than the engine has steps.
  return {lr, policy.decay ? weight_decay : 0, updates_[static_cast<std::size_t>(index)], scale};
}

namespace {

// Throws UsageError if the optimizer does not support the format or the placement of its state.
template <class How>
void check_state(const EngineOptions& options) {
  constexpr bool elementwise = std::is_constructible_v<rules::Elementwise, How>;
  std::string used = "an optimizer of torch::optim";
  if constexpr (!std::is_same_v<How, TorchOptimizer>) used = How::name;
  if (options.optimizer_state != OptimizerState::fp32 && !std::is_same_v<How, AdamW>) {
    throw UsageError(str("optimizer_state ", name(options.optimizer_state), ": got ", used,
                         ", must be adamw. Use optimizer_state fp32"));
  }
  if (options.offload.any() && !elementwise) {
    throw UsageError(
        str("offload of the optimizer: got ", used, ", must be adamw, sgd or lion. Omit offload"));
  }
}

}  // namespace

std::unique_ptr<Update> make_update(const UpdateContext& context) {
  return std::visit(
      [&](const auto& how) {
        using How = std::decay_t<decltype(how)>;
        check_state<How>(context.options);
        if constexpr (std::is_same_v<How, TorchOptimizer>) {
          return make_torch_update(how, context);
        } else if constexpr (std::is_same_v<How, Muon>) {
          return make_muon_update(how, context);
        } else {
          const bool plain = context.options.optimizer_state == OptimizerState::fp32 &&
                             !context.options.offload.any();
          return plain ? make_rule_update(how, context) : make_record_update(how, context);
        }
      },
      context.options.optimizer);
}

}  // namespace tessera::zero
