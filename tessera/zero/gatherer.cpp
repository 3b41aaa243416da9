#include "tessera/zero/gatherer.h"

#include <ATen/ops/empty.h>

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/unallocated.h"
#include "tessera/zero/storage.h"

namespace tessera::zero {
namespace {

at::TensorOptions options_of(const Space& space) {
  return at::device(space.device).dtype(space.dtype);
}

constexpr const char* kResharded =
    "This parameter is sharded, and its unit is not gathered. At stage 3 parameters can be read "
    "only inside the forward of their unit. Call full_parameters() to read them elsewhere, and "
    "load_parameters() to load them";
constexpr const char* kInFlight =
    "This parameter was updated by step(), and its new value is still being gathered. Call "
    "synchronize() of the engine before reading it outside forward, and load_parameters() to load "
    "it";
constexpr const char* kGone =
    "The engine that sharded this parameter was destroyed. Call full_parameters() before "
    "destroying it";

bool choose_alias(const Options& options, const DataGroups& groups, const Plan& plan) {
  if (!sharding_of_stage(options.stage).params) return false;
  bool cpu = true;
  for (const Space& space : plan.spaces) cpu = cpu && space.device.is_cpu();
  const bool can = Buffers::shares(groups.shard) && cpu;
  if (options.gather == Gather::alias && !can && groups.shard.size() > 1) {
    throw UsageError(
        "gather: got alias, which requires CPU parameters and ranks that share memory (backend "
        "shm). Use copy or automatic");
  }
  return can && options.gather != Gather::copy;
}

}  // namespace

int UnitOrder::enter(int unit) {
  const std::size_t at = entered_.size();
  entered_.push_back(unit);
  auto guess = known_.end();
  if (at > 0) {
    guess = known_.find(entered_[1]);
  } else if (alike_ && known_.size() == 1) {
    guess = known_.begin();
  }
  if (guess == known_.end()) return -1;
  const std::vector<int>& last = guess->second;
  return at + 1 < last.size() && last[at] == unit ? last[at + 1] : -1;
}

void UnitOrder::end() {
  if (entered_.size() > 1) known_[entered_[1]] = entered_;
  entered_.clear();
}

Gatherer::Gatherer(Plan& plan, const Options& options, const DataGroups& groups,
                   const Buffers& buffers)
    : plan_(plan),
      groups_(groups),
      buffers_(buffers),
      sharding_(sharding_of_stage(options.stage)),
      sharded_(sharding_.params),
      alias_(choose_alias(options, groups, plan)),
      prefetch_(options.prefetch),
      overlap_(options.overlap_param_gather && storages_can_be_marked()),
      units_(plan.units.size()),
      views_(plan.params.size()),
      versions_(plan.params.size()),
      forward_(plan.model_chunks == 1),
      backward_(plan.model_chunks == 1) {
  for (const UnitPlan& unit : plan.units) {
    keep_.push_back(options.keep_unit ? options.keep_unit(unit.name) : options.keep_params);
  }
  for (const Space& space : plan.spaces) {
    const at::TensorOptions type = options_of(space);
    if (alias_) {
      stores_.push_back(
          buffers.common(space.groups.shard, space.size, type, MemoryCategory::params));
    } else if (sharded_) {
      stores_.push_back(buffers.exposed(space.groups.shard, space.size / space.ranks(), type,
                                        MemoryCategory::params));
    } else if (sharding_.optimizer && space.trainable) {
      stores_.push_back(
          buffers.exposed(space.groups.shard, space.size, type, MemoryCategory::params));
    } else {
      stores_.push_back(buffers.own(space.size, type, MemoryCategory::params));
    }
  }
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    for (const Range& range : plan.units[u].ranges) {
      const Space& space = plan.spaces[static_cast<std::size_t>(range.space)];
      units_[u].full.push_back(sharded_ && !alias_
                                   ? nn::unallocated({range.end - range.begin}, options_of(space))
                                   : with_own_storage(stored(range)));
    }
  }
}

at::Tensor Gatherer::stored(const Range& range) const {
  return stores_[static_cast<std::size_t>(range.space)].tensor.narrow(0, range.begin,
                                                                      range.end - range.begin);
}

at::Tensor Gatherer::own_shards(const Range& range) const {
  const int ranks = plan_.space_of(range).ranks();
  return stores_[static_cast<std::size_t>(range.space)].tensor.narrow(
      0, range.begin / ranks, (range.end - range.begin) / ranks);
}

at::Tensor Gatherer::param_shard(int index) const {
  const Param& param = plan_.params[static_cast<std::size_t>(index)];
  const at::Tensor& store = stores_[static_cast<std::size_t>(param.space)].tensor;
  if (!sharding_.optimizer) return store.narrow(0, param.offset, param.numel);
  return store.narrow(0, plan_.own_offset(param, sharded_ && !alias_), plan_.own_shard(param).size);
}

bool Gatherer::is_replaced(int index) const {
  const auto i = static_cast<std::size_t>(index);
  const at::Tensor &now = plan_.params[i].tensor, &given = views_[i];
  const auto storage = [](const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  return storage(now) != storage(given) || now.scalar_type() != given.scalar_type() ||
         now.storage_offset() != given.storage_offset() || now.sizes() != given.sizes() ||
         now.strides() != given.strides();
}

// Tensors made in inference mode have no version counter; they are never trained.
bool Gatherer::is_written(int index) const {
  const auto i = static_cast<std::size_t>(index);
  const at::Tensor& now = plan_.params[i].tensor;
  return !now.is_inference() &&
         now.unsafeGetTensorImpl()->version_counter().current_version() != versions_[i];
}

void Gatherer::accept_write(int index) {
  const auto i = static_cast<std::size_t>(index);
  const at::Tensor& now = plan_.params[i].tensor;
  if (!now.is_inference()) {
    versions_[i] = now.unsafeGetTensorImpl()->version_counter().current_version();
  }
}

// Starts the all-gather of a unit, unless it is unsharded or in flight.
void Gatherer::start_unshard(int unit, const char* why, comm::Traffic traffic) {
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  if (state.unsharded || state.in_flight) return;
  state.in_flight = true;
  const UnitPlan& plan = plan_.units[static_cast<std::size_t>(unit)];
  for (const Range& range : plan.ranges) {
    comm::Call call;
    call.traffic = traffic;
    call.label = str(range.label, " (", why, ")");
    call.parts = range.parts;
    call.shared = alias_;
    at::Tensor to;
    if (alias_) {
      to = stored(range);
    } else {
      const memory::OwnerScope owner(buffers_.ledger());
      const memory::CategoryScope scope(MemoryCategory::buffers);
      to = at::empty({range.end - range.begin},
                     options_of(plan_.spaces[static_cast<std::size_t>(range.space)]));
      state.prefetched.push_back(to);
    }
    const comm::Group& group = plan_.space_of(range).groups.shard;
    state.works.push_back(group.all_gather(to, alias_ ? to : own_shards(range), call));
  }
}

void Gatherer::wait(UnitState& state) {
  if (!state.in_flight) return;
  exposed_.time([&] {
    for (const comm::Work& work : state.works) work.wait();
  });
  state.works.clear();
  state.in_flight = false;
  for (std::size_t i = 0; i < state.full.size(); ++i) {
    state.prefetched.empty() ? allow_reading(state.full[i])
                             : move_memory(state.full[i], state.prefetched[i]);
  }
  state.prefetched.clear();
  state.unsharded = true;
}

void Gatherer::unshard(int unit, const char* why, comm::Traffic traffic) {
  start_unshard(unit, why, traffic);
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::forbid_reading_of(UnitState& state, const char* why) {
  for (const at::Tensor& full : state.full) {
    sharded_ && !alias_ ? free_storage(full, why) : forbid_reading(full, why);
  }
}

void Gatherer::reshard(int unit) {
  if (!sharded_) return;
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  wait(state);
  if (!state.unsharded) return;
  state.unsharded = false;
  forbid_reading_of(state, kResharded);
}

void Gatherer::prefetch_after(UnitOrder& order, int unit, const char* why) {
  const int next = order.enter(unit);
  if (prefetch_ && next >= 0) start_unshard(next, why, comm::Traffic::model);
}

void Gatherer::enter_forward(int unit) {
  if (!sharded_) return wait(units_[static_cast<std::size_t>(unit)]);  // all_gather_updated()
  start_unshard(unit, "forward", comm::Traffic::model);
  prefetch_after(forward_, unit, "forward");
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::enter_recompute(int unit) {
  if (sharded_) unshard(unit, "recomputation");
}

void Gatherer::leave_forward(int unit, bool differentiable) {
  const bool keep = keep_[static_cast<std::size_t>(unit)] && differentiable;
  if (sharded_ && !keep) reshard(unit);
}

// Ends a forward pass, and frees units that were prefetched but not used.
void Gatherer::end_forward() {
  if (!sharded_) return;
  forward_.end();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].in_flight) reshard(static_cast<int>(u));
  }
}

void Gatherer::enter_backward(int unit) {
  if (!sharded_) return;
  start_unshard(unit, "backward", comm::Traffic::model);
  prefetch_after(backward_, unit, "backward");
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::end_backward() {
  if (!sharded_) return;
  backward_.end();
  for (std::size_t u = 0; u < units_.size(); ++u) reshard(static_cast<int>(u));
}

void Gatherer::begin_update() {
  if (!sharded_) return wait_all();
  for (std::size_t u = 0; u < units_.size(); ++u) reshard(static_cast<int>(u));
  forward_.forget();
  backward_.forget();
}

void Gatherer::detach() {
  for (UnitState& state : units_) {
    if (sharded_ || state.in_flight) forbid_reading_of(state, kGone);
  }
}

void Gatherer::all_gather_updated() {
  if (sharded_ || !sharding_.optimizer) return;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitState& state = units_[u];
    for (std::size_t r = 0; r < plan_.units[u].ranges.size(); ++r) {
      const Range& range = plan_.units[u].ranges[r];
      if (!plan_.spaces[static_cast<std::size_t>(range.space)].trainable) continue;
      const at::Tensor flat = stored(range);
      comm::Call call;
      call.label = range.label + " (updated)";
      call.parts = range.parts;
      state.works.push_back(plan_.space_of(range).groups.shard.all_gather(flat, flat, call));
      state.in_flight = true;
      if (overlap_) forbid_reading(state.full[r], kInFlight);
    }
    if (!overlap_) wait(state);
  }
}

void Gatherer::await_readers() {
  if (alias_) groups_.shard.barrier();
}

void Gatherer::wait_all() {
  for (UnitState& state : units_) wait(state);
}

at::Tensor Gatherer::Reader::elements(int index) {
  const Param& param = gatherer_.plan_.params[static_cast<std::size_t>(index)];
  if (gatherer_.sharded_ && param.unit != unit_) {
    if (unit_ >= 0) gatherer_.reshard(std::exchange(unit_, -1));
    gatherer_.unshard(param.unit, "read", comm::Traffic::control);
    unit_ = param.unit;
  }
  const auto u = static_cast<std::size_t>(param.unit);
  const std::vector<Range>& ranges = gatherer_.plan_.units[u].ranges;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].space != param.space) continue;
    return gatherer_.units_[u].full[i].narrow(0, param.offset - ranges[i].begin, param.numel);
  }
  throw Error(str("parameter ", quote(param.name), " is not in any range of its unit"));
}

}  // namespace tessera::zero
