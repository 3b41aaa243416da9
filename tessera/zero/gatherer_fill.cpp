// Initial and loaded values of parameters: Gatherer::fill() and Gatherer::load().

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/unallocated.h"
#include "tessera/zero/gatherer.h"
#include "tessera/zero/same_model.h"
#include "tessera/zero/storage.h"

namespace tessera::zero {
namespace {

comm::Call start_call(const Param& param) {
  comm::Call call;
  call.traffic = comm::Traffic::control;
  call.label = "start " + param.name;
  return call;
}

constexpr std::int64_t kBlock = std::int64_t{1} << 25;  // elements

// Computes initial values: in `place` if that is fp32 on the CPU, otherwise in new memory.
at::Tensor initial_values(const Options& options, const Param& param, ShardRange range,
                          const at::Tensor& place = {}) {
  const bool fits = place.defined() && place.is_cpu() && place.scalar_type() == at::kFloat;
  at::Tensor values = fits ? place : at::empty({range.size}, at::kFloat);
  if (range.size > 0) options.initial.write(param.name, range.begin, values);
  return values;
}

bool has_own_shard_only(const Options& options, const Param& param) {
  return options.initial.own_shard_only && options.initial.own_shard_only(param.name);
}

}  // namespace

at::Tensor Gatherer::own_values(const Options& options, const Param& param,
                                const at::Tensor& place) const {
  const ShardRange own = plan_.own_shard(param);
  if (nn::is_unallocated(param.tensor)) return initial_values(options, param, own, place);
  return all_values(options, param, {}).narrow(0, own.begin, own.size);
}

at::Tensor Gatherer::all_values(const Options& options, const Param& param,
                                const at::Tensor& place) const {
  if (!nn::is_unallocated(param.tensor)) {
    const at::Tensor values = elements_in_memory_order(param.tensor);
    // Into the parameter's own memory, which is freed afterwards.
    const comm::Group& all = plan_.space_of(param).groups.all;
    if (options.broadcast_start && all.size() > 1 && values.numel() > 0) {
      all.broadcast(values, 0, start_call(param)).wait();
    }
    return values;
  }
  if (!has_own_shard_only(options, param)) {
    return initial_values(options, param, {0, param.numel}, place);
  }
  const ShardRange own = plan_.own_shard(param);
  const at::Tensor mine = at::zeros({param.shard}, at::kFloat);
  mine.narrow(0, 0, own.size).copy_(initial_values(options, param, own));
  const comm::Group& group = plan_.space_of(param).groups.shard;
  const at::Tensor all = at::empty({param.shard * group.size()}, at::kFloat);
  group.all_gather(all, mine, start_call(param)).wait();
  return all.narrow(0, 0, param.numel);
}

// Computes initial values on the parameter's device, one block at a time: the device may not have
// memory for a second, fp32 copy of a large parameter.
void Gatherer::write_initial(const Options& options, int index, const at::Tensor& place,
                             const Sink& sink) const {
  const Param& param = plan_.params[static_cast<std::size_t>(index)];
  const ShardRange own = plan_.own_shard(param);
  const ShardRange kept = sharded_ ? own : ShardRange{0, param.numel};
  const ShardRange updated = sharding_.optimizer ? own : kept;
  at::Tensor block;
  for (std::int64_t at = 0; at < kept.size; at += kBlock) {
    const std::int64_t count = std::min(kBlock, kept.size - at), begin = kept.begin + at;
    const at::Tensor to = place.narrow(0, at, count);
    const bool fits = place.scalar_type() == at::kFloat;
    if (!fits && !block.defined()) {
      block = at::empty({std::min(kBlock, kept.size)}, place.options().dtype(at::kFloat));
    }
    const at::Tensor values = fits ? to : block.narrow(0, 0, count);
    options.initial.write(param.name, begin, values);
    if (!fits) to.copy_(values);
    const std::int64_t from = std::max(begin, updated.begin);
    const std::int64_t end = std::min(begin + count, updated.begin + updated.size);
    if (from < end) {
      sink(index, from - updated.begin, values.narrow(0, from - begin, end - from));
    }
  }
}

void Gatherer::fill(const Options& options, const Sink& sink) {
  check_initial(options);
  const at::NoGradGuard no_grad;
  const memory::OwnerScope owner(buffers_.ledger());
  const memory::CategoryScope scope(MemoryCategory::buffers);
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    UnitState& state = units_[u];
    for (std::size_t r = 0; r < plan_.units[u].ranges.size(); ++r) {
      const Range& range = plan_.units[u].ranges[r];
      for (const int index : range.params) {
        Param& param = plan_.params[static_cast<std::size_t>(index)];
        const ShardRange own = plan_.own_shard(param);
        const at::Tensor& store = stores_[static_cast<std::size_t>(param.space)].tensor;
        const at::Tensor place =
            sharded_ ? param_shard(index) : store.narrow(0, param.offset, param.numel);
        if (nn::is_unallocated(param.tensor) && options.initial.on_device && !place.is_cpu() &&
            !has_own_shard_only(options, param)) {
          write_initial(options, index, place, sink);
          give_view(index, state.full[r], range.begin);
          continue;
        }
        const at::Tensor values =
            sharded_ ? own_values(options, param, place) : all_values(options, param, place);
        if (!values.is_same(place)) place.copy_(values);
        const bool cut = !sharded_ && sharding_.optimizer;
        sink(index, 0, cut ? values.narrow(0, own.begin, own.size) : values);
        give_view(index, state.full[r], range.begin);
      }
    }
    // Leaves nothing unsharded at stage 3.
    state.unsharded = true;
    reshard(static_cast<int>(u));
  }
  if (alias_) groups_.shard.barrier();  // each rank has written its shards of the common memory
}

void Gatherer::give_view(int index, const at::Tensor& full, std::int64_t base) {
  const auto i = static_cast<std::size_t>(index);
  Param& param = plan_.params[i];
  views_[i] = view_of(param, full, base);
  param.tensor.set_data(views_[i]);
  accept_write(index);
}

// Collective. Returns, for each parameter, true if rank 0 of its group has new values of it. All
// ranks of a group see the same numbers, so either all throw or none.
std::vector<bool> Gatherer::agree_on_new(const std::vector<at::Tensor>& values,
                                         const std::string& problem, bool from_rank_0) const {
  std::vector<bool> is_new(values.size());
  agree_on_new(groups_.all, false, values, problem, from_rank_0, is_new);
  if (plan_.expert_groups) {
    agree_on_new(plan_.expert_groups->all, true, values, problem, from_rank_0, is_new);
  }
  return is_new;
}

void Gatherer::agree_on_new(const comm::Group& group, bool experts,
                            const std::vector<at::Tensor>& values, const std::string& problem,
                            bool from_rank_0, std::vector<bool>& is_new) const {
  std::vector<std::size_t> params;
  for (std::size_t i = 0; i < plan_.params.size(); ++i) {
    if (plan_.of_expert(i) == experts) params.push_back(i);
  }
  const auto count = static_cast<std::int64_t>(params.size());
  const int ranks = group.simulated() ? 1 : group.size();
  // One row per rank: a number for each parameter, and one for the problem.
  const at::Tensor mine = at::zeros({count + 1}, at::kLong);
  const at::Tensor all = ranks > 1 ? at::empty({(count + 1) * ranks}, at::kLong) : mine;
  auto* const own = mine.mutable_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    own[i] = values[params[static_cast<std::size_t>(i)]].defined() ? 1 : 0;
  }
  own[count] = problem.empty() ? 0 : 1;
  if (ranks > 1) {
    comm::Call call;
    call.traffic = comm::Traffic::control;
    call.label = "new parameters";
    group.all_gather(all, mine, call).wait();
  }
  if (!problem.empty()) throw UsageError("load_parameters(): " + problem);
  const auto* const numbers = all.const_data_ptr<std::int64_t>();
  for (int r = 0; r < ranks; ++r) {
    const auto* const theirs = numbers + r * (count + 1);
    if (theirs[count] != 0) {
      throw UsageError(str("load_parameters(): rank ", r, " of group ", group.name(),
                           " was given parameters that do not fit. See the error of that rank"));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      if (theirs[i] == numbers[i] || (from_rank_0 && numbers[i] == 1)) continue;
      throw UsageError(str("load_parameters(): parameter ",
                           quote(plan_.params[params[static_cast<std::size_t>(i)]].name),
                           " has new values on rank ", numbers[i] == 1 ? 0 : r, " but not on rank ",
                           numbers[i] == 1 ? r : 0, ". Load the same parameters on all ranks",
                           from_rank_0 ? ", or on rank 0 only" : ""));
    }
  }
  for (std::size_t i = 0; i < params.size(); ++i) is_new[params[i]] = numbers[i] != 0;
}

void Gatherer::load(const std::vector<at::Tensor>& values, const std::string& problem,
                    const Options& options, const Sink& sink) {
  begin_update();
  const at::NoGradGuard no_grad;
  const memory::OwnerScope owner(buffers_.ledger());
  const memory::CategoryScope scope(MemoryCategory::buffers);
  // After this exchange no rank reads the old parameters.
  const std::vector<bool> is_new = agree_on_new(values, problem, options.broadcast_start);
  std::uint64_t hash = 0, expert_hash = 0;
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    for (std::size_t r = 0; r < plan_.units[u].ranges.size(); ++r) {
      const Range& range = plan_.units[u].ranges[r];
      for (const int index : range.params) {
        const auto i = static_cast<std::size_t>(index);
        if (!is_new[i]) continue;
        const Param& param = plan_.params[i];
        const at::Tensor& store = stores_[static_cast<std::size_t>(param.space)].tensor;
        const bool narrow = c10::elementSize(store.scalar_type()) < 4;
        const at::Tensor flat = at::empty(
            {param.numel}, store.options().dtype(narrow ? at::kFloat : store.scalar_type()));
        if (values[i].defined()) flat.as_strided(param.sizes, param.strides).copy_(values[i]);
        const Space& space = plan_.space_of(param);
        if (options.broadcast_start && space.groups.all.size() > 1 && param.numel > 0) {
          space.groups.all.broadcast(flat, 0, start_call(param)).wait();
        }
        std::uint64_t& mixed = space.of_experts ? expert_hash : hash;
        if (!options.broadcast_start) mixed = mix_bits(mixed, flat);
        const ShardRange own = plan_.own_shard(param);
        const at::Tensor shard = flat.narrow(0, own.begin, own.size);
        sharded_ ? param_shard(index).copy_(shard)
                 : store.narrow(0, param.offset, param.numel).copy_(flat);
        sink(index, 0, sharding_.optimizer ? shard : flat);
        give_view(index, units_[u].full[r], range.begin);
      }
    }
  }
  if (!options.broadcast_start) {
    expect_same_start(groups_.all, hash);
    if (plan_.expert_groups) expect_same_start(plan_.expert_groups->all, expert_hash);
  }
  if (alias_) groups_.shard.barrier();  // each rank has written its shards of the common memory
}

// [Note: same initial values] At stage 3 each element of a parameter without memory is computed by
// one rank only. To detect ranks that differ, for example in their seed, each rank also computes
// the first elements of every shard of the next rank, and the two are compared.
void Gatherer::check_initial(const Options& options) const {
  check_initial(options, groups_, false);
  if (plan_.expert_groups) check_initial(options, *plan_.expert_groups, true);
}

void Gatherer::check_initial(const Options& options, const DataGroups& groups, bool experts) const {
  constexpr std::int64_t kCompared = 4096;  // elements of a shard
  const int ranks = groups.all.size(), shards = groups.shard.size();
  const int next = (groups.all.rank() + 1) % ranks;
  std::uint64_t mine = 0, theirs = 0;
  bool any = false;
  for (const Param& param : plan_.params) {
    if (plan_.space_of(param).of_experts != experts || !nn::is_unallocated(param.tensor)) continue;
    if (!options.initial) {
      throw UsageError(str("parameter ", quote(param.name),
                           " has no memory: it was made without memory, or an earlier engine "
                           "sharded it. Pass its values in Options::initial, or build the model "
                           "again"));
    }
    if (ranks == 1 || !sharded_ || groups.all.simulated() || has_own_shard_only(options, param)) {
      continue;
    }
    any = true;
    const auto first = [&](int rank) {
      const ShardRange shard = shard_of(param, rank % shards);
      return initial_values(options, param, {shard.begin, std::min(shard.size, kCompared)});
    };
    mine = mix_bits(mine, first(groups.all.rank()));
    theirs = mix_bits(theirs, first(next));
  }
  if (any) expect_same_as_next(groups.all, mine, theirs);
}

}  // namespace tessera::zero
