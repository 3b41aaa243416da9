// The training state between two steps: what a checkpoint saves of it and how that comes back, and
// the whole parameters.

#include <ATen/ops/zeros.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/zero/engine_impl.h"
#include "tessera/zero/same_model.h"

namespace tessera::zero {
namespace {

// Collective: all elements of a parameter, flat, from each rank's shard of them.
at::Tensor gather_shards(const comm::Group& group, const Param& param, const at::Tensor& mine) {
  const at::Tensor flat = at::zeros({param.shard * group.size()}, mine.options());
  const at::Tensor own = at::zeros({param.shard}, mine.options());
  own.narrow(0, 0, mine.numel()).copy_(mine);
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = param.name;
  group.all_gather(flat, own, call).wait();
  return flat.narrow(0, 0, param.numel);
}

}  // namespace

std::vector<StateShard> Engine::state(StateScope scope) {
  Impl& impl = *impl_;
  if (scope == StateScope::held && impl.passes.stepping()) {
    throw UsageError(
        "the engine's state cannot be loaded in the middle of a step; call step(), or discard(), "
        "first");
  }
  Gatherer::Reader reader(impl.gatherer);  // waits
  const Sharding sharded = sharding_of_stage(impl.options.stage);
  std::vector<StateShard> shards;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const auto index = static_cast<int>(i);
    const Param& param = impl.plan.params[i];
    const ShardRange mine = shard_of(param, impl.group.rank());
    // `whole`: the rank has all elements of it, and others have them too.
    const auto add = [&](const std::string& state, const at::Tensor& values, bool whole) {
      if (!whole) {
        if (mine.size > 0) {
          shards.push_back({param.name, state, mine.begin, values, param.sizes, param.strides});
        }
      } else if (scope == StateScope::held) {
        shards.push_back({param.name, state, 0, values, param.sizes, param.strides});
      } else if (mine.size > 0) {
        const at::Tensor own = values.narrow(0, mine.begin, mine.size);
        shards.push_back({param.name, state, mine.begin, own, param.sizes, param.strides});
      }
    };
    if (param.bucket < 0) {  // frozen: never cut below stage 3
      const std::size_t before = shards.size();
      add("param", sharded.params ? impl.gatherer.param_shard(index) : reader.elements(index),
          !sharded.params);
      if (shards.size() > before) shards.back().frozen = true;
      continue;
    }
    const at::Tensor master = impl.update->master_shard(index);
    add("param", master.defined() ? master : impl.gatherer.param_shard(index), !sharded.optimizer);
    for (const auto& [name, values] : impl.update->states(index)) {
      add(name, values, !sharded.optimizer);
    }
  }
  if (scope == StateScope::held || impl.group.rank() == 0) {
    for (const auto& buffer : impl.model->named_buffers()) {
      const at::Tensor& values = buffer.value();
      if (!values.defined() || values.numel() == 0) continue;
      if (!values.is_contiguous()) {
        throw UsageError(str("buffer ", quote(buffer.key()),
                             " is not contiguous, and cannot be saved; make it so"));
      }
      const auto& name = impl.options.axes.name;
      shards.push_back({name ? name(buffer.key()) : buffer.key(), "buffer", 0,
                        values.variable_data().view(-1), values.sizes().vec(),
                        values.strides().vec()});
    }
  }
  return shards;
}

std::vector<std::string> Engine::frozen_params() const {
  std::vector<std::string> names;
  for (const Param& param : impl_->plan.params) {
    if (param.bucket < 0) names.push_back(param.name);
  }
  return names;
}

std::vector<LeftOut> Engine::left_out(StateScope scope) {
  std::vector<LeftOut> all;
  for (const auto& kept : impl_->reducer.left_out(scope == StateScope::owned)) {
    const Param& param = impl_->plan.params[static_cast<std::size_t>(kept.param)];
    all.push_back({param.name, kept.error.view(-1), kept.next, param.sizes, param.strides});
  }
  return all;
}

StepCounts Engine::progress() const {
  impl_->settle();
  StepCounts progress;
  progress.loss_scale = impl_->loss_scale;
  progress.good_steps = impl_->good_steps;
  progress.steps = impl_->update->steps();
  for (std::size_t i = 0; i < impl_->plan.params.size(); ++i) {
    if (impl_->plan.params[i].bucket < 0) continue;
    progress.updates[impl_->plan.params[i].name] = impl_->update->updates()[i];
  }
  return progress;
}

void Engine::resume(const StepCounts& progress) {
  Impl& impl = *impl_;
  if (impl.passes.stepping())
    throw UsageError("resume() in the middle of a step; call step() first");
  const at::NoGradGuard no_grad;
  std::vector<std::int64_t> updates;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    const auto known = progress.updates.find(param.name);
    updates.push_back(known == progress.updates.end() ? progress.steps : known->second);
    const at::Tensor master = impl.update->master_shard(static_cast<int>(i));
    if (master.defined()) impl.gatherer.param_shard(static_cast<int>(i)).copy_(master);
  }
  if (impl.device) {
    impl.device->set_counts({progress.steps, progress.loss_scale, progress.good_steps, updates});
  }
  impl.unsettled = false;
  impl.loss_scale = progress.loss_scale;
  impl.good_steps = progress.good_steps;
  impl.update->resume(progress.steps, std::move(updates));
  impl.reducer.resume(progress.steps);
  impl.gatherer.all_gather_updated();
  impl.gatherer.wait_all();
  // With one copy for all ranks, nobody reads before everybody has written.
  impl.group.barrier();
}

std::vector<std::pair<std::string, at::Tensor>> Engine::full_parameters() {
  Impl& impl = *impl_;
  const at::NoGradGuard no_grad;
  Gatherer::Reader reader(impl.gatherer);
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    const at::Tensor master = impl.update->master_shard(static_cast<int>(i));
    at::Tensor flat;
    if (master.defined() && sharding_of_stage(impl.options.stage).optimizer) {
      flat = gather_shards(impl.group, param, master);
    } else {
      flat = master.defined() ? master : reader.elements(static_cast<int>(i));
    }
    const at::Tensor elements = flat.narrow(0, 0, param.numel).to(at::kFloat, false, true);
    result.emplace_back(param.name, elements.as_strided(param.sizes, param.strides));
  }
  return result;
}

std::vector<std::pair<std::string, at::Tensor>> Engine::full_gradients() {
  Impl& impl = *impl_;
  const at::NoGradGuard no_grad;
  impl.passes.check_step();
  impl.finish_reduction();
  const at::Tensor scale = impl.device ? impl.device->loss_scale() : at::Tensor();
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    if (param.bucket < 0) continue;
    const at::Tensor shard = impl.reducer.grad_shard(static_cast<int>(i));
    const at::Tensor flat = sharding_of_stage(impl.options.stage).optimizer
                                ? gather_shards(impl.group, param, shard)
                                : shard;
    const auto type = flat.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor elements = flat.to(type, /*non_blocking=*/false, /*copy=*/true);
    if (scale.defined()) elements.div_(scale);
    result.emplace_back(param.name, elements.as_strided(param.sizes, param.strides));
  }
  return result;
}

std::uint64_t Engine::params_hash() {
  Gatherer::Reader reader(impl_->gatherer);
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < impl_->plan.params.size(); ++i) {
    value = mix_bits(value, reader.elements(static_cast<int>(i)));
  }
  return value;
}

}  // namespace tessera::zero
