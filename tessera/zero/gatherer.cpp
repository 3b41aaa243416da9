#include "tessera/zero/gatherer.h"

#include <ATen/ops/empty.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::zero {
namespace {

at::TensorOptions options_of(const Space& space) {
  return at::device(space.device).dtype(space.dtype);
}

c10::DataPtr take_memory(const at::Tensor& tensor) {
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
void put_in_storage(Storage& storage, c10::DataPtr memory) {
  storage.set_data_ptr_noswap(std::move(memory));
  if constexpr (kMarkCanBeTakenBack<Storage>) storage.clear_data_ptr_access_error_msg_();
}
void put_memory(const at::Tensor& tensor, c10::DataPtr memory) {
  put_in_storage(*tensor.storage().unsafeGetStorageImpl(), std::move(memory));
}

template <class Storage>
void clear_storage(Storage& storage, at::Device device, const char* why) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  if constexpr (kMarkCanBeTakenBack<Storage>) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(why);
  }
}
void take_away(const at::Tensor& tensor, const char* why) {
  clear_storage(*tensor.storage().unsafeGetStorageImpl(), tensor.device(), why);
}
constexpr const char* kFree =
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
  forward_.one_way = backward_.one_way = plan.sections == 1;
  if (alias_) {
    take_alias();
  } else if (sharded_) {
    take_shards(broadcast);
  } else {
    take_whole(broadcast);
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

void Gatherer::take_whole(bool broadcast) {
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

void Gatherer::take_alias() {
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

void Gatherer::take_shards(bool broadcast) {
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
      const at::Tensor own = own_chunks(range);
      for (const int index : range.params) {
        const Param& param = plan_.params[static_cast<std::size_t>(index)];
        const std::int64_t at = param.offset - range.begin;
        own.narrow(0, at / plan_.ranks, param.chunk)
            .copy_(full.tensor.narrow(0, at + group_.rank() * param.chunk, param.chunk));
      }
      take_away(full.tensor, kFree);
      units_[u].full.push_back(full.tensor);
    }
  }
}

at::Tensor Gatherer::own_chunks(const Range& range) const {
  return stores_[static_cast<std::size_t>(range.space)].tensor.narrow(
      0, range.begin / plan_.ranks, (range.end - range.begin) / plan_.ranks);
}

at::Tensor Gatherer::param_slice(int index) const {
  const Param& param = plan_.params[static_cast<std::size_t>(index)];
  const at::Tensor& store = stores_[static_cast<std::size_t>(param.space)].tensor;
  if (!sharding_.optimizer) return store.narrow(0, param.offset, param.numel);
  const Slice slice = slice_of(param, group_.rank());
  const bool shard = sharded_ && !alias_;
  return store.narrow(0, shard ? param.offset / plan_.ranks : param.offset + slice.begin,
                      slice.size);
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

int Gatherer::Sequence::follower(int unit) {
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

// Starts bringing a unit in, unless it is there or on its way.
void Gatherer::start(int unit, const char* why, comm::Traffic traffic) {
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  if (state.there || state.on_its_way) return;
  state.on_its_way = true;
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
      state.ahead.push_back(to);
    }
    state.works.push_back(group_.all_gather(to, alias_ ? to : own_chunks(range), call));
  }
}

void Gatherer::wait(UnitState& state) {
  if (!state.on_its_way) return;
  exposed_.time([&] {
    for (const comm::Work& work : state.works) work.wait();
  });
  state.works.clear();
  state.on_its_way = false;
  for (std::size_t i = 0; i < state.ahead.size(); ++i) {
    put_memory(state.full[i], take_memory(state.ahead[i]));
  }
  state.ahead.clear();
  state.there = true;
}

void Gatherer::bring(int unit, const char* why, comm::Traffic traffic) {
  start(unit, why, traffic);
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::release(int unit) {
  if (!sharded_) return;
  UnitState& state = units_[static_cast<std::size_t>(unit)];
  wait(state);
  if (!state.there) return;
  state.there = false;
  for (const at::Tensor& full : state.full) take_away(full, kFree);
}

void Gatherer::follow(Sequence& sequence, int unit, const char* why) {
  const int next = sequence.follower(unit);
  if (prefetch_ && next >= 0) start(next, why, comm::Traffic::model);
}

void Gatherer::enter_forward(int unit) {
  if (!sharded_) return wait(units_[static_cast<std::size_t>(unit)]);  // for publish()
  start(unit, "forward", comm::Traffic::model);
  follow(forward_, unit, "forward");
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::enter_recompute(int unit) {
  if (sharded_) bring(unit, "recomputation");
}

void Gatherer::leave_forward(int unit, bool differentiable) {
  if (sharded_ && !(keep_ && differentiable)) release(unit);
}

// Ends a forward pass: what was fetched for it in vain goes.
void Gatherer::end_forward() {
  if (!sharded_) return;
  forward_.end();
  for (std::size_t u = 0; u < units_.size(); ++u) {
    if (units_[u].on_its_way) release(static_cast<int>(u));
  }
}

void Gatherer::enter_backward(int unit) {
  if (!sharded_) return;
  start(unit, "backward", comm::Traffic::model);
  follow(backward_, unit, "backward");
  wait(units_[static_cast<std::size_t>(unit)]);
}

void Gatherer::end_backward() {
  if (!sharded_) return;
  backward_.end();
  release_all();
}

void Gatherer::begin_update() {
  if (!sharded_) return wait_all();
  release_all();
  // A pass that an exception ended is no guide to the next.
  forward_.now.clear();
  backward_.now.clear();
}

void Gatherer::abandon() {
  for (UnitState& state : units_) {
    for (const at::Tensor& full : state.full) take_away(full, kGone);
  }
}

void Gatherer::publish() {
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
      state.on_its_way = true;
    }
    if (!overlap_) wait(state);
  }
}

void Gatherer::wait_all() {
  for (UnitState& state : units_) wait(state);
}

void Gatherer::gather_all() {
  for (std::size_t u = 0; u < units_.size(); ++u) {
    sharded_ ? bring(static_cast<int>(u), "read", comm::Traffic::control) : wait(units_[u]);
  }
}

void Gatherer::release_all() {
  for (std::size_t u = 0; u < units_.size(); ++u) release(static_cast<int>(u));
}

}  // namespace tessera::zero
