#include "tessera/parallel/state_shards.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <set>

#include "tessera/checkpoint/manifest.h"
#include "tessera/comm/torch_dtype.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/memory/allocator.h"
#include "tessera/memory/ledger.h"
#include "tessera/parallel/frozen.h"
#include "tessera/parallel/gather_texts.h"

namespace tessera::parallel {
namespace {

constexpr const char* kUpdates = "updates";
constexpr std::string_view kUpdatesOf = "updates/";
constexpr const char* kLossScale = "updates/ loss scale";  // cannot be the name of a parameter
constexpr const char* kGoodSteps = "updates/ good steps";  // the same; older checkpoints lack it

DType stored_dtype(const zero::StateShard& shard) {
  if (const auto found = comm::find_dtype(shard.type())) return *found;
  throw UsageError(str(shard.state, " ", quote(shard.param), " is of type ",
                       c10::toString(shard.type()),
                       ", which checkpoints do not support. Use another type"));
}

// Returns the dims of a dense tensor from outermost to innermost in memory, without those of
// size 1.
std::vector<std::size_t> memory_order(const zero::StateShard& shard) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < shard.sizes.size(); ++d) {
    if (shard.sizes[d] != 1) dims.push_back(d);
  }
  std::stable_sort(dims.begin(), dims.end(), [&](std::size_t a, std::size_t b) {
    return shard.strides[a] > shard.strides[b];
  });
  return dims;
}

bool row_major(const zero::StateShard& shard) {
  const std::vector<std::size_t> dims = memory_order(shard);
  return std::is_sorted(dims.begin(), dims.end());
}

// Specs of a rank's parameters and buffers, by name.
class Specs {
 public:
  explicit Specs(const Checkpointable& what) : what_(what), list_(what.specs) {
    for (std::size_t i = 0; i < list_.size(); ++i) index_[list_[i].name] = i;
  }
  const ParamSpec& of(const zero::StateShard& shard) {
    const auto [at, fresh] = index_.emplace(shard.param, list_.size());
    if (fresh) {
      list_.emplace_back();
      list_.back().name = shard.param;
      list_.back().shape = shard.sizes;
    }
    return list_[at->second];
  }
  std::vector<Run> counted(const zero::StateShard& shard) {
    const ParamSpec& spec = of(shard);
    const bool known = index_.at(shard.param) < what_.specs.size();
    if (known && what_.counted) return what_.counted(shard.param);
    return counted_runs(spec, what_.axes, what_.coordinate);
  }
  std::vector<Run> local(const zero::StateShard& shard) {
    return local_runs(of(shard), what_.axes, what_.coordinate);
  }
  std::vector<ParamSpec> take() { return std::move(list_); }

 private:
  const Checkpointable& what_;
  std::vector<ParamSpec> list_;
  std::map<std::string, std::size_t> index_;
};

std::optional<std::int64_t> parse_count(const std::string& text) {
  std::int64_t count = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc{} || end != text.data() + text.size() || count < 0 ||
      count > checkpoint::kMaxCount) {
    return std::nullopt;
  }
  return count;
}

// Returns the part of `runs` (of the rank's parameter, row-major) in a shard, in memory order.
// Element by element if it is not row-major (channels last): slow but simple.
std::vector<Run> runs_of(const zero::StateShard& shard, const std::vector<Run>& runs) {
  const std::int64_t count = shard.count();
  if (row_major(shard)) return checkpoint::cut(runs, shard.begin, count);
  const std::vector<std::size_t> dims = memory_order(shard);
  std::vector<std::int64_t> steps(shard.sizes.size(), 1);  // row-major strides
  for (std::size_t d = steps.size(); d-- > 1;) steps[d - 1] = steps[d] * shard.sizes[d];
  std::vector<Run> out;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = shard.begin + i, at = 0;
    for (std::size_t k = dims.size(); k-- > 0;) {
      const std::int64_t size = shard.sizes[dims[k]];
      at += rest % size * steps[dims[k]];
      rest /= size;
    }
    const auto run = std::partition_point(runs.begin(), runs.end(),
                                          [&](const Run& r) { return r.local + r.count <= at; });
    if (run == runs.end() || run->local > at) continue;
    const std::int64_t whole = run->whole + at - run->local;
    if (!out.empty() && out.back().whole + out.back().count == whole &&
        out.back().local + out.back().count == i) {
      ++out.back().count;
    } else {
      out.push_back({whole, i, 1});
    }
  }
  return out;
}

// Returns host memory as a tensor of the type of `values`, to copy to or from.
at::Tensor on_host(const at::Tensor& values, std::int64_t count, const std::byte* memory) {
  return at::from_blob(const_cast<std::byte*>(memory), {count}, values.options().device(at::kCPU));
}

// Names of all frozen parameters of this rank's engine, at any stage.
std::set<std::string> frozen_params(const Checkpointable& what) {
  const std::vector<std::string> names = what.engine.frozen_params();
  return {names.begin(), names.end()};
}

// Returns the specs without those of omitted parameters.
std::vector<ParamSpec> specs_without(std::vector<ParamSpec> specs,
                                     const std::set<std::string>& omitted) {
  std::erase_if(specs, [&](const ParamSpec& spec) { return omitted.contains(spec.name); });
  return specs;
}

}  // namespace

std::vector<FrozenShard> frozen_shards(const Checkpointable& what) {
  const at::NoGradGuard no_grad;
  std::vector<FrozenShard> out;
  Specs specs(what);
  for (const zero::StateShard& shard : what.engine.state(zero::StateScope::owned)) {
    if (!shard.frozen) continue;
    std::vector<Run> runs = runs_of(shard, specs.counted(shard));
    if (!runs.empty()) out.push_back({shard.param, shard.values, std::move(runs)});
  }
  return out;
}

StateToSave state_to_save(const Checkpointable& what, bool frozen) {
  const at::NoGradGuard no_grad;
  StateToSave out;
  Specs specs(what);
  const std::set<std::string> omitted = frozen ? std::set<std::string>() : frozen_params(what);
  for (const zero::StateShard& shard : what.engine.state(zero::StateScope::owned)) {
    if (omitted.contains(shard.param)) continue;
    // The elements of this rank that no earlier rank has.
    std::vector<Run> runs = runs_of(shard, specs.counted(shard));
    if (runs.empty()) continue;
    checkpoint::Shard& saved = out.shards.emplace_back();
    saved.param = shard.param;
    saved.state = shard.state;
    saved.dtype = stored_dtype(shard);
    saved.runs = std::move(runs);
    if (shard.stored) {
      saved.fetch = [stored = shard.stored, first = shard.stored_begin](
                        std::int64_t begin, std::int64_t count, std::byte* into) {
        stored->read(first + begin, count, into);
      };
      continue;
    }
    // Elements are not copied from a device one at a time.
    const at::Tensor values = row_major(shard) ? shard.values : shard.values.to(at::kCPU);
    out.kept.push_back(values);
    if (values.is_cpu()) {
      saved.data = static_cast<const std::byte*>(values.const_data_ptr());
      continue;
    }
    saved.fetch = [values](std::int64_t begin, std::int64_t count, std::byte* into) {
      const at::NoGradGuard no_gradients;
      on_host(values, count, into).copy_(values.narrow(0, begin, count));
    };
  }
  out.specs = specs_without(specs.take(), omitted);
  return out;
}

StateToLoad state_to_load(const Checkpointable& what,
                          const std::function<bool(const zero::StateShard&)>& is_wanted,
                          bool frozen) {
  const at::NoGradGuard no_grad;
  StateToLoad out;
  Specs specs(what);
  const std::set<std::string> omitted = frozen ? std::set<std::string>() : frozen_params(what);
  for (const zero::StateShard& shard : what.engine.state(zero::StateScope::held)) {
    if (omitted.contains(shard.param)) continue;
    if (!is_wanted(shard)) continue;
    checkpoint::WantedShard& wanted = out.shards.emplace_back();
    wanted.param = shard.param;
    wanted.state = shard.state;
    wanted.dtype = stored_dtype(shard);
    wanted.runs = runs_of(shard, specs.local(shard));
    if (shard.stored) {
      wanted.store = [stored = shard.stored, first = shard.stored_begin](
                         std::int64_t begin, std::int64_t count, const std::byte* from) {
        stored->write(first + begin, count, from);
      };
      continue;
    }
    at::Tensor values = shard.values;
    if (!values.is_cpu() && !row_major(shard)) {
      values = at::empty_like(values, at::device(at::kCPU));
      out.copies.emplace_back(shard.values, values);
    }
    out.kept.push_back(values);
    if (values.is_cpu()) {
      wanted.into = static_cast<std::byte*>(values.mutable_data_ptr());
      continue;
    }
    wanted.store = [values](std::int64_t begin, std::int64_t count, const std::byte* from) {
      const at::NoGradGuard no_gradients;
      values.narrow(0, begin, count).copy_(on_host(values, count, from));
    };
  }
  out.specs = specs_without(specs.take(), omitted);
  return out;
}

checkpoint::Team team_of(const comm::Group& group) {
  checkpoint::Team team;
  team.rank = group.rank();
  team.size = group.size();
  team.gather = [group](std::string text) { return gather_texts(group, text, "checkpoint"); };
  team.broadcast = [group](std::string text) {
    return gather_texts(group, group.rank() == 0 ? text : std::string(), "checkpoint").front();
  };
  return team;
}

checkpoint::Charge charge_of(const zero::Engine& engine) {
  std::shared_ptr<memory::Ledger> ledger = engine.options().ledger;
  if (!ledger) ledger = memory::current_ledger();
  return [ledger = std::move(ledger)](std::int64_t bytes) -> std::shared_ptr<void> {
    return std::make_shared<memory::Charge>(ledger, MemoryCategory::temporary, bytes);
  };
}

void check_keys(const Extra& extra) {
  for (const auto& [key, value] : extra) {
    if (key == kUpdates || std::string_view(key).starts_with(kUpdatesOf)) {
      throw UsageError(str("extra ", quote(key),
                           ": this key is reserved for the optimizer's counts. ",
                           "Use another key"));
    }
  }
}

void put_counts(Extra& extra, const zero::StepCounts& counts) {
  extra[kUpdates] = str(counts.steps);
  for (const auto& [param, updates] : counts.updates) {
    if (updates != counts.steps) extra[str(kUpdatesOf, param)] = str(updates);
  }
  // The scale is a power of two, so it is an integer.
  if (counts.loss_scale > 0) {
    extra[kLossScale] = str(static_cast<std::int64_t>(counts.loss_scale));
    extra[kGoodSteps] = str(counts.good_steps);
  }
}

zero::StepCounts take_counts(Extra& extra, const std::string& where) {
  extra.erase(kFrozen);
  zero::StepCounts counts;
  const auto read = [&](const std::string& text) {
    const auto count = parse_count(text);
    if (count) return *count;
    throw DataError(str(where, ": got ", quote(text), " updates of the parameters, must be 0 to ",
                        checkpoint::kMaxCount, ", as tessera::save and tessera train save it"));
  };
  const auto steps = extra.find(kUpdates);
  counts.steps = read(steps == extra.end() ? std::string() : steps->second);
  if (steps != extra.end()) extra.erase(steps);
  if (const auto scale = extra.find(kLossScale); scale != extra.end()) {
    counts.loss_scale = static_cast<double>(read(scale->second));
    extra.erase(scale);
  }
  if (const auto good = extra.find(kGoodSteps); good != extra.end()) {
    counts.good_steps = read(good->second);
    extra.erase(good);
  }
  for (auto at = extra.lower_bound(std::string(kUpdatesOf));
       at != extra.end() && std::string_view(at->first).starts_with(kUpdatesOf);
       at = extra.erase(at)) {
    counts.updates[at->first.substr(kUpdatesOf.size())] = read(at->second);
  }
  return counts;
}

}  // namespace tessera::parallel
