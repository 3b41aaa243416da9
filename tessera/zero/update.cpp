#include "tessera/zero/update.h"

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/norm.h"
#include "tessera/zero/optimizers.h"

namespace tessera::zero {

Update::Update(Plan& plan, const Options& options, const comm::Group& group, const Buffers& buffers,
               const Gatherer& gatherer)
    : plan_(plan),
      group_(group),
      buffers_(buffers),
      gatherer_(gatherer),
      sharded_(sharding_of_stage(options.stage).optimizer),
      seed_(options.seed) {
  if (options.axes.counted) {
    for (const Param& p : plan.params) counted_.push_back(options.axes.counted(p.name));
  }
  updates_.resize(plan.params.size());
  master_.resize(plan.spaces.size());
  for (std::size_t s = 0; s < plan.spaces.size(); ++s) {
    const Space& space = plan.spaces[s];
    if (!space.trainable || !space.master) continue;
    master_[s] = buffers.own(sharded_ ? space.size / plan.ranks : space.size,
                             at::device(space.device).dtype(at::kFloat), MemoryCategory::optimizer);
    for (const int index : space.params) {
      slice(master_, index).copy_(gatherer.param_shard(index));
    }
  }
}

std::vector<Buffer> Update::make_state() const {
  std::vector<Buffer> state(plan_.spaces.size());
  for (std::size_t s = 0; s < plan_.spaces.size(); ++s) {
    const Space& space = plan_.spaces[s];
    if (!space.trainable) continue;
    const at::ScalarType type = space.dtype == at::kDouble ? at::kDouble : at::kFloat;
    state[s] = buffers_.own(sharded_ ? space.size / plan_.ranks : space.size,
                            at::device(space.device).dtype(type), MemoryCategory::optimizer);
  }
  return state;
}

ShardRange Update::part(const Param& p) const {
  return sharded_ ? shard_of(p, group_.rank()) : ShardRange{0, p.numel};
}

at::Tensor Update::slice(const std::vector<Buffer>& state, int index) const {
  const Param& p = param(index);
  const at::Tensor& flat = state[static_cast<std::size_t>(p.space)].tensor;
  return flat.narrow(0, sharded_ ? p.offset / plan_.ranks : p.offset, part(p).size);
}

at::Tensor Update::master_shard(int index) const {
  const Param& p = param(index);
  return space_of(p).trainable && space_of(p).master ? slice(master_, index) : at::Tensor();
}

double Update::sum_of_squares(const Reducer& reducer) const {
  double sum = 0;
  const auto add = [&sum](const at::Tensor& values) {
    if (values.numel() == 0) return;
    if (const auto type = kernel_type(values)) {
      sum += kernels::sum_of_squares(values.const_data_ptr(), *type,
                                     static_cast<std::size_t>(values.numel()));
    } else {
      sum += values.to(at::kDouble).square().sum().item<double>();
    }
  };
  for (std::size_t i = 0; i < plan_.params.size(); ++i) {
    if (plan_.params[i].bucket < 0) continue;
    const at::Tensor chunk = reducer.owned_grad(static_cast<int>(i));
    if (counted_.empty()) {
      add(chunk);
      continue;
    }
    const ShardRange slice = shard_of(plan_.params[i], group_.rank());
    for (const Run& run : counted_[i]) {
      const std::int64_t begin = std::max(run.local, slice.begin);
      const std::int64_t end = std::min(run.local + run.count, slice.begin + slice.size);
      if (begin < end) add(chunk.narrow(0, begin - slice.begin, end - begin));
    }
  }
  return sum;
}

void Update::resume(std::int64_t steps, std::vector<std::int64_t> updates) {
  steps_ = steps;
  updates_ = std::move(updates);
}

std::optional<kernels::Type> kernel_type(const at::Tensor& tensor) {
  if (!tensor.is_cpu()) return std::nullopt;
  if (tensor.scalar_type() == at::kFloat) return kernels::Type::f32;
  if (tensor.scalar_type() == at::kBFloat16) return kernels::Type::bf16;
  return std::nullopt;
}

std::unique_ptr<Update> make_update(Plan& plan, const Options& options, const comm::Group& group,
                                    const Buffers& buffers, const Gatherer& gatherer) {
  const UpdateParts parts{plan, options, group, buffers, gatherer};
  return std::visit([&](const auto& how) { return make_update(how, parts); }, options.optimizer);
}

}  // namespace tessera::zero
