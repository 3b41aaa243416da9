#include "tessera/zero/gatherer.h"

#include <ATen/ops/empty.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::zero {
namespace {

at::TensorOptions options_of(const Space& space) {
  return at::device(space.device).dtype(space.dtype);
}

c10::DataPtr take_storage_memory(const at::Tensor& tensor) {
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  return storage->set_data_ptr(c10::DataPtr(nullptr, tensor.device()));
}

// [Note: reading a free unit] Nobody reads the memory of a unit that is free; if somebody does, it
// is an error that says why. LibTorch before 2.13 cannot take such a mark back once it is set:
// there the memory is only gone, and reading it finds a null pointer.
template <class Storage>
constexpr bool kMarkCanBeTakenBack = requires(Storage& storage) {
  storage.clear_data_ptr_access_error_msg_();
};

template <class Storage>
void set_memory_of(Storage& storage, c10::DataPtr memory) {
  storage.set_data_ptr_noswap(std::move(memory));
  if constexpr (kMarkCanBeTakenBack<Storage>) storage.clear_data_ptr_access_error_msg_();
}
void set_storage_memory(const at::Tensor& tensor, c10::DataPtr memory) {
  set_memory_of(*tensor.storage().unsafeGetStorageImpl(), std::move(memory));
}

template <class Storage>
void clear_memory_of(Storage& storage, at::Device device, const char* why) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  if constexpr (kMarkCanBeTakenBack<Storage>) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
  }
}
void free_storage(const at::Tensor& tensor, const char* why) {
  clear_memory_of(*tensor.storage().unsafeGetStorageImpl(), tensor.device(), why);
}
constexpr const char* kResharded =
    "this parameter is sharded, and its unit is not gathered: at stage 3 parameters are read "
    "inside "
    "the forward of their unit only. Take full_parameters() to read them elsewhere";
constexpr const char* kGone =
    "this parameter was sharded by an engine that is gone; take full_parameters() before";

bool choose_alias(const Options& options, const Buffers& buffers, const Plan& plan) {
  if (!sharding_of_stage(options.stage).params) return false;
  bool cpu = true;
  for (const Space& space : plan.spaces) cpu = cpu && space.device.is_cpu();
  const bool can = buffers.shares() && cpu;
  if (options.gather == Gather::alias && !can && plan.ranks > 1) {
    throw UsageError(
        "gather: got alias, which needs CPU parameters and ranks that share memory (backend shm); "
        "choose copy or automatic");
  }
  return can && options.gather != Gather::copy;
}

}  // namespace

Gatherer::Gatherer(Plan& plan, const Options& options, const comm::Group& group,
                   const Buffers& buffers, bool broadcast)
    : plan_(plan),
      group_(group),
      buffers_(buffers),
      sharding_(sharding_of_stage(options.stage)),
      sharded_(sharding_.params),
      keep_(options.keep_params),
      prefetch_(options.prefetch),
      overlap_(options.overlap_param_gather),
      alias_(choose_alias(options, buffers, plan)),
      units_(plan.units.size()) {
  forward_.one_way = backward_.one_way = plan.model_chunks == 1;
  if (alias_) {
    fill_common();
  } else if (sharded_) {
    fill_shards(broadcast);
  } else {
    fill_whole(broadcast);
  }
}

// Copies parameters to their places in a flat buffer that begins at `base` of their space, and
// makes them views of it: their old memory is free then.
void Gatherer::fill(const Range& range, const at::Tensor& flat, std::int64_t base) {
  const at::NoGradGuard no_grad;
  for (const int index : range.params) {
    Param& param = plan_.params[static_cast<std::size_t>(index)];
    const at::Tensor view = view_of(param, flat, base);
    view.copy_(param.tensor);
    param.tensor.set_data(view);
  }
}

void Gatherer::fill_whole(bool broadcast) {
  for (const Space& space : plan_.spaces) {
    const bool travels = sharding_.optimizer && space.trainable;
    stores_.push_back(travels
                          ? buffers_.exposed(space.size, options_of(space), MemoryCategory::params)
                          : buffers_.own(space.size, options_of(space), MemoryCategory::params));
  }
  for (const UnitPlan& unit : plan_.units) {
    for (const Range& range : unit.ranges) {
      const at::Tensor& store = stores_[static_cast<std::size_t>(range.space)].tensor;
      fill(range, store, 0);
      comm::Call call;
      call.traffic = comm::Traffic::control;
      call.label = "start " + range.label;
      if (broadcast) {
        group_.broadcast(store.narrow(0, range.begin, range.end - range.begin), 0, call).wait();
      }
    }
  }
}

void Gatherer::fill_common() {
  for (const Space& space : plan_.spaces) {
    stores_.push_back(buffers_.common(space.size, options_of(space), MemoryCategory::params));
  }
  // One copy for all ranks, so one rank writes it: the others have the same, or are to get it.
  const at::NoGradGuard no_grad;
  for (Param& param : plan_.params) {
    const at::Tensor view = view_of(param, stores_[static_cast<std::size_t>(param.space)].tensor);
    if (group_.rank() == 0) view.copy_(param.tensor);
    param.tensor.set_data(view);
  }
  group_.barrier();
}

void Gatherer::fill_shards(bool broadcast) {
  for (const Space& space : plan_.spaces) {
    stores_.push_back(
        buffers_.exposed(space.size / plan_.ranks, options_of(space), MemoryCategory::params));
  }
  for (std::size_t u = 0; u < plan_.units.size(); ++u) {
    for (const Range& range : plan_.units[u].ranges) {
      const Space& space = plan_.spaces[static_cast<std::size_t>(range.space)];
      const Buffer full =
          buffers_.own(range.end - range.begin, options_of(space), MemoryCategory::buffers);
      fill(range, full.tensor, range.begin);
      comm::Call call;
      call.traffic = comm::Traffic::control;
      call.label = "start " + range.label;
      if (broadcast) group_.broadcast(full.tensor, 0, call).wait();
      const at::Tensor own = own_shards(range);
      for (const int index : range.params) {
        const Param& param = plan_.params[static_cast<std::size_t>(index)];
        const std::int64_t at = param.offset - range.begin;
        own.narrow(0, at / plan_.ranks, param.shard)
            .copy_(full.tensor.narrow(0, at + group_.rank() * param.shard, param.shard));
      }
      free_storage(full.tensor, kResharded);
      units_[u].full.push_back(full.tensor);
    }
  }
}

at::Tensor Gatherer::own_shards(const Range& range) const {
  return stores_[static_cast<std::size_t>(range.space)].tensor.narrow(
      0, range.begin / plan_.ranks, (range.end - range.begin) / plan_.ranks);
}

at::Tensor Gatherer::param_shard(int index) const {
  const Param& param = plan_.params[static_cast<std::size_t>(index)];
  const at::Tensor& store = stores_[static_cast<std::size_t>(param.space)].tensor;
  if (!sharding_.optimizer) return store.narrow(0, param.offset, param.numel);
  const ShardRange own = shard_of(param, group_.rank());
  const bool alone = sharded_ && !alias_;
  return store.narrow(0, alone ? param.offset / plan_.ranks : param.offset + own.begin, own.size);
}

at::Tensor Gatherer::elements(int index) const {
  const Param& param = plan_.params[static_cast<std::size_t>(index)];
  if (!sharded_ || alias_) {
    return stores_[static_cast<std::size_t>(param.space)].tensor.narrow(0, param.offset,
                                                                        param.numel);
  }
  const auto u = static_cast<std::size_t>(param.unit);
  const std::vector<Range>& ranges = plan_.units[u].ranges;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    if (ranges[i].space == param.space) {
      return units_[u].full[i].narrow(0, param.offset - ranges[i].begin, param.numel);
    }
  }
  throw Error(str("parameter ", quote(param.name), " is in no range of its unit"));
}

int Gatherer::Sequence::next_after(int unit) {
  const std::size_t at = now.size();
  now.push_back(unit);
  auto guess = known.end();
  if (at > 0) {
    guess = known.find(now[1]);
  } else if (one_way && known.size() == 1) {
    guess = known.begin();
  }
  if (guess == known.end()) return -1;
  const std::vector<int>& last = guess->second;
  return at + 1 < last.size() && last[at] == unit ? last[at + 1] : -1;
}

void Gatherer::Sequence::end() {
  if (now.size() > 1) known[now[1]] = now;
  now.clear();
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
      to = stores_[static_cast<std::size_t>(range.space)].tensor.narrow(0, range.begin,
                                                                        range.end - range.begin);
    } else {
      const memory::OwnerScope owner(buffers_.ledger());
      const memory::CategoryScope scope(MemoryCategory::buffers);
      to = at::empty({range.end - range.begin},
                     options_of(plan_.spaces[static_cast<std::size_t>(range.space)]));
      state.prefetched.push_back(to);
    }
    state.works.push_back(group_.all_gather(to, alias_ ? to : own_shards(range), call));
  }
}

void Gatherer::wait(UnitState& state) {
  if (!state.in_flight) return;
  exposed_.time([&] {
    for (const comm::Work& work : state.works) work.wait();
  });
  state.works.clear();
  state.in_flight = false;
  for (std::size_t i = 0; i < state.prefetched.size(); ++i) {
    set_storage_memory(state.full[i], take_storage_memory(state.prefetched[i]));
  }
  state.prefetched.clear();
  state.unsharded = true;
}

void Gatherer::unshard(int unit, const char* why, comm::Traffic traffic) {
  start_unshard(unit, why, traffic);
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::reshard(int unit) {
  if (!sharded_) return;
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  wait(state);
  if (!state.unsharded) return;
  state.unsharded = false;
  for (const at::Tensor& full : state.full) free_storage(full, kResharded);
}

void Gatherer::prefetch_after(Sequence& sequence, int unit, const char* why) {
  const int next = sequence.next_after(unit);
  if (prefetch_ && next >= 0) start_unshard(next, why, comm::Traffic::model);
}

void Gatherer::enter_forward(int unit) {
  if (!sharded_) return wait(units_[static_cast<std::size_t>(unit)]);  // for all_gather_updated()
  start_unshard(unit, "forward", comm::Traffic::model);
  prefetch_after(forward_, unit, "forward");
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::enter_recompute(int unit) {
  if (sharded_) unshard(unit, "recomputation");
}

void Gatherer::leave_forward(int unit, bool differentiable) {
  if (sharded_ && !(keep_ && differentiable)) reshard(unit);
}

// Ends a forward pass: what was fetched for it in vain goes.
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
  reshard_all();
}

void Gatherer::begin_update() {
  if (!sharded_) return wait_all();
  reshard_all();
  // A pass that an exception ended is no guide to the next.
  forward_.now.clear();
  backward_.now.clear();
}

void Gatherer::detach() {
  for (UnitState& state : units_) {
    for (const at::Tensor& full : state.full) free_storage(full, kGone);
  }
}

void Gatherer::all_gather_updated() {
  if (sharded_ || !sharding_.optimizer) return;
  for (std::size_t u = 0; u < units_.size(); ++u) {
    UnitState& state = units_[u];
    for (const Range& range : plan_.units[u].ranges) {
      if (!plan_.spaces[static_cast<std::size_t>(range.space)].trainable) continue;
      const at::Tensor flat = stores_[static_cast<std::size_t>(range.space)].tensor.narrow(
          0, range.begin, range.end - range.begin);
      comm::Call call;
      call.label = range.label + " (updated)";
      call.parts = range.parts;
      state.works.push_back(group_.all_gather(flat, flat, call));
      state.in_flight = true;
    }
    if (!overlap_) wait(state);
  }
}

void Gatherer::wait_all() {
  for (UnitState& state : units_) wait(state);
}

void Gatherer::unshard_all() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    sharded_ ? unshard(static_cast<int>(u), "read", comm::Traffic::control) : wait(units_[u]);
  }
}

void Gatherer::reshard_all() {
  for (std::size_t u = 0; u < units_.size(); ++u) reshard(static_cast<int>(u));
}

}  // namespace tessera::zero
