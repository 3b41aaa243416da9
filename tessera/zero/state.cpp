// Training state between two steps: state to save and load, whole parameters and gradients, and
// parameters that the program has changed.

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <unordered_map>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/text.h"
#include "tessera/zero/engine_impl.h"
#include "tessera/zero/module_buffers.h"
#include "tessera/zero/same_model.h"

namespace tessera::zero {
namespace {

// Collective. Returns all elements of a parameter, flat, from the shards of the ranks.
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

void Engine::Impl::check_not_replaced(const char* call) const {
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    if (!gatherer.is_replaced(static_cast<int>(i))) continue;
    throw UsageError(str(call, ": parameter ", quote(plan.params[i].name),
                         " was replaced after the engine was made, by torch::load(), set_data() or "
                         "Module::to(), and would not be trained. Call load_parameters(model) of "
                         "the engine on all ranks to load it. After to(), make a new engine"));
  }
}

void Engine::Impl::check_params(const char* call) const {
  check_not_replaced(call);
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const Param& param = plan.params[i];
    if (param.bucket < 0 && param.tensor.requires_grad()) {
      throw UsageError(str(call, ": parameter ", quote(param.name),
                           " was frozen when the engine was made and requires a gradient now. The "
                           "engine has no gradient and no optimizer state for it. Make the engine "
                           "after requires_grad_(true), or call requires_grad_(false) again"));
    }
    if (gatherer.shards() && gatherer.is_written(static_cast<int>(i))) {
      throw UsageError(str(call, ": parameter ", quote(param.name),
                           " was written to in place. At stage 3 the write goes to a gathered copy "
                           "and is lost. Set the new values with set_data(), and call "
                           "load_parameters(model) of the engine on all ranks"));
    }
  }
}

// Elements that were not written keep their full fp32 precision.
void Engine::Impl::refresh_master(int index) const {
  const at::Tensor master = update->read_master(index);
  if (!master.defined() || master.numel() == 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor now = gatherer.param_shard(index);
  update->write_master(index, 0,
                       at::where(master.to(now.scalar_type()).eq(now), master, now.to(at::kFloat)));
}

void Engine::Impl::take_writes() {
  if (gatherer.shards()) return;  // check_params() refuses them
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (!gatherer.is_written(index)) continue;
    gatherer.accept_write(index);
    written[i] = true;
    refresh_master(index);
    // At higher stages the next gather distributes the owner's values.
    const at::Tensor values = gatherer.param_shard(index);
    if (options.stage == 0 && group.size() > 1 && values.is_cpu() && !plan.of_expert(i)) {
      written_bits = mix_bits(written_bits, values);
    }
  }
}

// Returns the value that `from` has for each parameter of the engine. If `from` is the model
// itself, only those that were replaced.
std::vector<at::Tensor> Engine::Impl::values_of(const torch::nn::Module& from,
                                                std::string& problem) const {
  std::unordered_map<const c10::TensorImpl*, std::size_t> indices;
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    indices[plan.params[i].tensor.unsafeGetTensorImpl()] = i;
  }
  const auto theirs = from.named_parameters();
  std::vector<at::Tensor> values(plan.params.size());
  for (const auto& entry : model->named_parameters()) {
    const auto known = indices.find(entry.value().unsafeGetTensorImpl());
    if (known == indices.end()) continue;
    const auto i = known->second;
    const Param& param = plan.params[i];
    const Space& space = plan.spaces[static_cast<std::size_t>(param.space)];
    const at::Tensor* const given = theirs.find(entry.key());
    if (given == nullptr || given->sizes() != at::IntArrayRef(param.sizes)) {
      problem = tessera::str("parameter ", quote(param.name), " of the model has shape ",
                             at::IntArrayRef(param.sizes), ", but the given module has ",
                             given == nullptr ? std::string("no parameter of that name")
                                              : tessera::str("shape ", given->sizes()));
      return values;
    }
    if (!given->is_same(param.tensor)) {
      values[i] = given->detach();
    } else if (gatherer.is_replaced(static_cast<int>(i))) {
      const bool fits = given->scalar_type() == space.dtype ||
                        (given->scalar_type() == at::kFloat && c10::elementSize(space.dtype) < 4);
      if (!fits || given->device() != space.device) {
        problem = str("parameter ", quote(param.name), " is now ",
                      c10::toString(given->scalar_type()), " on ", given->device().str(),
                      ", but the engine trains ", c10::toString(space.dtype), " on ",
                      space.device.str(), ". Convert or move the model before making the engine");
        return values;
      }
      values[i] = given->detach();
    }
  }
  return values;
}

void Engine::Impl::load_parameters(const torch::nn::Module& from) {
  if (passes.stepping()) {
    throw UsageError(
        "load_parameters() was called in the middle of a step. Call step() or discard() first");
  }
  std::string problem;
  const std::vector<at::Tensor> values = values_of(from, problem);
  gatherer.load(values, problem, options,
                [this](int index, std::int64_t at, const at::Tensor& given) {
                  write_master(index, at, given);
                });
  // Also takes over writes to other parameters, including those that no version counter shows. At
  // stage 3 there are none.
  take_writes();
  for (std::size_t i = 0; i < plan.params.size() && !gatherer.shards(); ++i) {
    refresh_master(static_cast<int>(i));
  }
  const at::NoGradGuard no_grad;
  const auto theirs = from.named_buffers();
  for (const auto& own : model->named_buffers()) {
    const at::Tensor* const given = theirs.find(own.key());
    if (given == nullptr || !given->defined() || given->is_same(own.value())) continue;
    own.value().copy_(*given);
  }
  if (options.broadcast_start) broadcast_module_buffers(*model, group, reducer.exposed());
}

at::Tensor StateShard::read() const {
  if (!stored) return values;
  const at::Tensor copy = at::empty({stored_count}, stored->type);
  stored->read(stored_begin, stored_count, static_cast<std::byte*>(copy.mutable_data_ptr()));
  return copy;
}

void StateShard::write(const at::Tensor& from) const {
  if (!stored) {
    values.copy_(from);
    return;
  }
  const at::Tensor host = from.to(at::device(at::kCPU).dtype(stored->type)).contiguous();
  stored->write(stored_begin, stored_count, static_cast<const std::byte*>(host.const_data_ptr()));
}

std::vector<StateShard> Engine::state(StateScope scope) {
  Impl& impl = *impl_;
  if (scope == StateScope::held && impl.passes.stepping()) {
    throw UsageError(
        "The engine's state cannot be loaded in the middle of a step. Call step() or discard() "
        "first");
  }
  impl.check_not_replaced("state()");
  impl.take_writes();
  if (scope == StateScope::held) impl.gatherer.await_readers();
  Gatherer::Reader reader(impl.gatherer);  // waits
  std::vector<StateShard> shards;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    impl.add_shards(shards, static_cast<int>(i), scope, &reader);
  }
  if (scope == StateScope::held || (scope == StateScope::owned && impl.group.rank() == 0)) {
    impl.add_buffers(shards);
  }
  return shards;
}

void Engine::Impl::add_shards(std::vector<StateShard>& shards, int index, StateScope scope,
                              Gatherer::Reader* reader) const {
  const Sharding sharded = sharding_of_stage(options.stage);
  const Param& param = nth(plan.params, index);
  const ShardRange mine = plan.own_shard(param);
  // `whole`: this rank and others hold all elements of it.
  const auto add = [&](const std::string& state, const at::Tensor& values, bool whole) {
    // Replicas own the same shards; the first one saves them.
    if (scope == StateScope::owned && groups.replicate.rank() > 0) return;
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
  const auto add_stored = [&](StoredState&& state, const std::string& name, bool whole) {
    if (scope == StateScope::owned && groups.replicate.rank() > 0) return;
    const bool held_whole = whole && scope == StateScope::held;
    const ShardRange in = whole && !held_whole ? mine : ShardRange{0, state.count};
    if (in.size == 0 && !held_whole) return;
    StateShard& shard = shards.emplace_back();
    shard.param = param.name;
    shard.state = name;
    shard.begin = held_whole ? 0 : mine.begin;
    shard.sizes = param.sizes;
    shard.strides = param.strides;
    shard.stored = std::make_shared<const StoredState>(std::move(state));
    shard.stored_begin = in.begin;
    shard.stored_count = in.size;
  };
  if (param.bucket < 0) {  // frozen: whole below stage 3
    const std::size_t before = shards.size();
    add("param", sharded.params ? gatherer.param_shard(index) : reader->elements(index),
        !sharded.params);
    if (shards.size() > before) shards.back().frozen = true;
    return;
  }
  if (auto stored = update->stored_master(index)) {
    add_stored(std::move(*stored), "param", !sharded.optimizer);
  } else {
    const at::Tensor master = update->master_shard(index);
    add("param", master.defined() ? master : gatherer.param_shard(index), !sharded.optimizer);
  }
  if (scope == StateScope::params) return;
  for (StoredState& stored : update->stored_states(index)) {
    const std::string name = stored.state;
    add_stored(std::move(stored), name, !sharded.optimizer);
  }
  for (const auto& [name, values] : update->states(index)) add(name, values, !sharded.optimizer);
}

void Engine::Impl::add_buffers(std::vector<StateShard>& shards) const {
  for (const auto& buffer : model->named_buffers()) {
    const at::Tensor& values = buffer.value();
    if (!values.defined() || values.numel() == 0) continue;
    if (!values.is_contiguous()) {
      throw UsageError(str("buffer ", quote(buffer.key()),
                           " is not contiguous and cannot be saved. Make it contiguous"));
    }
    const auto& name = options.axes.name;
    shards.push_back({name ? name(buffer.key()) : buffer.key(), "buffer", 0,
                      values.variable_data().view(-1), values.sizes().vec(),
                      values.strides().vec()});
  }
}

std::vector<std::string> Engine::frozen_params() const {
  std::vector<std::string> names;
  for (const Param& param : impl_->plan.params) {
    if (param.bucket < 0) names.push_back(param.name);
  }
  return names;
}

StepCounts Engine::progress() const {
  impl_->fetch_counts();
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
    throw UsageError("resume() was called in the middle of a step. Call step() first");
  const at::NoGradGuard no_grad;
  impl.gatherer.await_readers();
  std::vector<std::int64_t> updates;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    const auto known = progress.updates.find(param.name);
    updates.push_back(known == progress.updates.end() ? progress.steps : known->second);
    const at::Tensor master = impl.update->read_master(static_cast<int>(i));
    if (master.defined()) impl.gatherer.param_shard(static_cast<int>(i)).copy_(master);
  }
  if (impl.device) {
    impl.device->set_counts({progress.steps, progress.loss_scale, progress.good_steps, updates});
  }
  impl.counts_on_device = false;
  impl.loss_scale = progress.loss_scale;
  impl.good_steps = progress.good_steps;
  impl.update->resume(progress.steps, std::move(updates));
  impl.gatherer.all_gather_updated();
  impl.gatherer.wait_all();
  // With Gather::alias, no rank may read before every rank has written.
  impl.group.barrier();
}

std::vector<std::pair<std::string, at::Tensor>> Engine::full_parameters() {
  Impl& impl = *impl_;
  impl.check_not_replaced("full_parameters()");
  impl.take_writes();
  const at::NoGradGuard no_grad;
  Gatherer::Reader reader(impl.gatherer);
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    const at::Tensor master = impl.update->read_master(static_cast<int>(i));
    at::Tensor flat;
    if (master.defined() && sharding_of_stage(impl.options.stage).optimizer) {
      flat = gather_shards(impl.plan.space_of(param).groups.shard, param, master);
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
  if (!on_any_rank(impl.group, impl.passes.has_work())) {
    throw UsageError(
        "full_gradients(): no rank has called backward() since the last step. Call "
        "full_gradients() between backward() and step()");
  }
  impl.finish_reduction();
  const at::Tensor scale = impl.device ? impl.device->loss_scale() : at::Tensor();
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (std::size_t i = 0; i < impl.plan.params.size(); ++i) {
    const Param& param = impl.plan.params[i];
    if (param.bucket < 0) continue;
    const at::Tensor shard = impl.reducer.grad_shard(static_cast<int>(i));
    const at::Tensor flat =
        sharding_of_stage(impl.options.stage).optimizer
            ? gather_shards(impl.plan.space_of(param).groups.shard, param, shard)
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
