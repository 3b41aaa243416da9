#include "tessera/parallel/left_out.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "tessera/core/text.h"

namespace tessera::parallel {
namespace {

constexpr std::string_view kError = "powersgd_error.", kNext = "powersgd_next.";

// Index of this rank's copy of a tied parameter, and the number of copies.
struct Copy {
  int index = 0, of = 1;
};
Copy copy_of(const Checkpointable& what, const std::string& param) {
  for (const zero::ModelAxes::Tie& tie : what.engine.model_axes().ties) {
    if (tie.param == param) return {tie.group.rank(), tie.group.size()};
  }
  return {};
}

ParamSpec spec_of(const Checkpointable& what, const zero::LeftOut& kept) {
  for (const ParamSpec& spec : what.specs) {
    if (spec.name == kept.param) return spec;
  }
  ParamSpec whole;
  whole.name = kept.param;
  whole.shape = kept.sizes;
  return whole;
}

zero::StateShard shard_of(const zero::LeftOut& kept) {
  return {kept.param, "", 0, kept.error, kept.sizes, kept.strides};
}

std::string error_name(int replica, int copy) { return str(kError, replica, ".", copy); }

std::string next_name(const Checkpointable& what, const zero::LeftOut& kept, int copy) {
  return str(kNext, kept.next.size(1), ".", what.axes.tp(), ".", copy);
}

// Owner of an error state; nullopt if the name is not that of an error state.
struct Owner {
  int replica = 0, copy = 0;
};
std::optional<Owner> owner_of(std::string_view state) {
  if (!state.starts_with(kError)) return std::nullopt;
  Owner owner;
  const char* at = state.data() + kError.size();
  const char* const end = state.data() + state.size();
  const auto first = std::from_chars(at, end, owner.replica);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != '.') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, owner.copy);
  if (second.ec != std::errc() || second.ptr != end) return std::nullopt;
  return owner.replica < 0 || owner.copy < 0 ? std::nullopt : std::optional(owner);
}

// Copies elements [begin, begin + count) of values that are followed by zeros.
void fetch_padded(const at::Tensor& values, std::int64_t begin, std::int64_t count,
                  std::byte* into) {
  const at::NoGradGuard no_grad;
  const std::int64_t have = std::clamp<std::int64_t>(values.numel() - begin, 0, count);
  if (have > 0) on_host(values, have, into).copy_(values.narrow(0, begin, have));
  std::memset(into + have * 4, 0, static_cast<std::size_t>((count - have) * 4));
}

void store_padded(const at::Tensor& values, std::int64_t begin, std::int64_t count,
                  const std::byte* from) {
  const at::NoGradGuard no_grad;
  const std::int64_t have = std::clamp<std::int64_t>(values.numel() - begin, 0, count);
  if (have > 0) values.narrow(0, begin, have).copy_(on_host(values, have, from));
}

}  // namespace

bool is_power_sgd_state(std::string_view state) {
  return state.starts_with(kError) || state.starts_with(kNext);
}

void add_power_sgd_state(const Checkpointable& what, StateToSave& into) {
  const int replica = what.axes.data_index(what.place);
  for (const zero::LeftOut& kept : what.engine.left_out(zero::StateScope::owned)) {
    const Copy copy = copy_of(what, kept.param);
    // If several tensor-parallel ranks have the same elements, the first saves them.
    const std::vector<Run> runs =
        runs_of(shard_of(kept), counted_runs(spec_of(what, kept), what.axes, what.place));
    if (runs.empty()) continue;
    // This rank may have errors of a parameter whose other states are saved by other ranks.
    const bool known = std::any_of(into.specs.begin(), into.specs.end(),
                                   [&](const ParamSpec& spec) { return spec.name == kept.param; });
    if (!known) into.specs.push_back(spec_of(what, kept));
    const auto add = [&](const std::string& state, const at::Tensor& values) {
      checkpoint::Shard& saved = into.shards.emplace_back();
      saved.param = kept.param;
      saved.state = state;
      saved.dtype = DType::f32;
      saved.runs = runs;
      saved.fetch = [values](std::int64_t begin, std::int64_t count, std::byte* to) {
        fetch_padded(values, begin, count, to);
      };
    };
    add(error_name(replica, copy.index), kept.error);
    // Q' is the same on all replicas.
    if (replica == 0) add(next_name(what, kept, copy.index), kept.next.view(-1));
  }
}

PowerSgdToLoad power_sgd_to_load(const Checkpointable& what, const checkpoint::Checkpoint& from) {
  PowerSgdToLoad out;
  const int replica = what.axes.data_index(what.place), replicas = what.axes.dp();
  std::set<std::string> taken;
  for (const zero::LeftOut& kept : what.engine.left_out(zero::StateScope::held)) {
    taken.insert(kept.param);
    const Copy copy = copy_of(what, kept.param);
    const std::vector<Run> runs =
        runs_of(shard_of(kept), local_runs(spec_of(what, kept), what.axes, what.place));
    const auto want = [&](const std::string& state, auto store) {
      checkpoint::WantedShard& wanted = out.shards.emplace_back();
      wanted.param = kept.param;
      wanted.state = state;
      wanted.dtype = DType::f32;
      wanted.runs = runs;
      wanted.store = std::move(store);
    };
    std::vector<std::string> errors;
    for (const auto& [state, dtype] : from.states(kept.param)) {
      const std::optional<Owner> owner = owner_of(state);
      const bool mine =
          owner && owner->replica % replicas == replica && owner->copy % copy.of == copy.index;
      if (mine) errors.push_back(state);
      if (state == next_name(what, kept, copy.index)) {
        want(state, [next = kept.next.view(-1)](std::int64_t begin, std::int64_t count,
                                                const std::byte* values) {
          store_padded(next, begin, count, values);
        });
      }
    }
    for (const std::string& state : errors) {
      // A single error is copied, so that its bits are preserved.
      want(state, [error = kept.error, add = errors.size() > 1](
                      std::int64_t begin, std::int64_t count, const std::byte* values) {
        const at::NoGradGuard no_grad;
        const at::Tensor into = error.narrow(0, begin, count);
        const at::Tensor more = on_host(error, count, values);
        if (add) {
          into.add_(more.to(error.device()));
        } else {
          into.copy_(more);
        }
      });
    }
  }
  std::int64_t dropped = 0;
  for (const ParamSpec& spec : what.specs.empty() ? from.about().params : what.specs) {
    if (taken.contains(spec.name)) continue;
    const auto states = from.states(spec.name);
    dropped += std::any_of(states.begin(), states.end(),
                           [](const auto& state) { return owner_of(state.first).has_value(); });
  }
  if (dropped > 0) {
    out.note = str("The PowerSGD error feedback of ", plural(dropped, "parameter"),
                   " is dropped, because their gradients are not compressed here");
  }
  return out;
}

}  // namespace tessera::parallel
