#include "tessera/core/axes.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

int parse_axis_size(std::string_view name, std::string_view text) {
  int size = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, size);
  if (error != std::errc() || at != end || size < 1) {
    throw UsageError(str("axis ", name, ": got ", quote(text),
                         "; the number of ranks must be an integer of 1 or more"));
  }
  return size;
}

}  // namespace

const Axis* find_axis(std::string_view wanted) {
  const auto* const found = std::find_if(kAllAxes.begin(), kAllAxes.end(),
                                         [&](Axis axis) { return axis_name(axis) == wanted; });
  return found == kAllAxes.end() ? nullptr : found;
}

Axis axis_named(std::string_view wanted) {
  if (const Axis* const found = find_axis(wanted)) return *found;
  std::vector<std::string> names;
  for (const Axis axis : kAllAxes) names.emplace_back(axis_name(axis));
  throw UsageError(str("axis ", quote(wanted), " does not exist; it must be one of ",
                       join(names, ", "), did_you_mean(wanted, names)));
}

std::string_view axis_title(Axis axis) {
  return axis == Axis::dp_replicate ? "replicas" : axis_name(axis);
}

std::string axis_flag(Axis axis) {
  std::string name(axis_name(axis));
  std::replace(name.begin(), name.end(), '_', '-');
  return "--" + name;
}

std::string_view axis_help(Axis axis) {
  switch (axis) {
    case Axis::tp: return "tensor-parallel ranks";
    case Axis::cp: return "context-parallel ranks, which share each sequence";
    case Axis::ep: return "expert-parallel ranks, which share the experts of each layer";
    case Axis::dp_shard: return "data-parallel ranks";
    case Axis::dp_replicate: return "groups of data-parallel ranks that each hold all state";
    case Axis::pp: return "pipeline stages";
  }
  return "";
}

std::string axis_product() {
  std::string out;
  for (const Axis axis : kPrintedAxes) {
    if (!detail::is_factor(axis)) continue;  // dp counts them: [Note: replicas]
    out += str(out.empty() ? "" : " · ", axis_name(axis));
  }
  return out;
}

Axes::Axes(std::initializer_list<std::pair<Axis, int>> sizes) : Axes() {
  for (const auto& [axis, size] : sizes) set(axis, size);
}

// Calls `each(axis, text after "=")` for every part of "dp=2,tp=2".
template <typename Each>
static void each_named(std::string_view text, std::string_view example, const Each& each) {
  PerAxis<bool> named;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw UsageError(
          str("axes: got ", quote(text), "; must be names and numbers such as ", example));
    }
    const std::string_view key = part.substr(0, equals);
    const Axis axis = axis_named(key);
    if (named[axis]) throw UsageError(str("axis ", key, " appears twice in ", quote(text)));
    named[axis] = true;
    each(axis, part.substr(equals + 1));
    begin = end + 1;
  }
}

Axes::Axes(std::string_view text) : Axes() {
  each_named(text, "dp=2,tp=2,pp=2", [&](Axis axis, std::string_view size) {
    given_[axis] = parse_axis_size(axis_name(axis), size);
  });
  check_replicas();
  check_experts();
}

Coordinate Axes::coordinate_named(std::string_view text) const {
  Coordinate at;
  if (text.empty()) return at;
  each_named(text, "tp=1,dp=3", [&](Axis axis, std::string_view number) {
    int index = 0;
    const char* const end = number.data() + number.size();
    const auto [stop, error] = std::from_chars(number.data(), end, index);
    if (error != std::errc() || stop != end || index < 0 || index >= given(axis)) {
      throw UsageError(str("axis ", axis_name(axis), ": got index ", quote(number),
                           "; must be 0 to ", given(axis) - 1));
    }
    if (!detail::is_factor(axis)) {
      throw UsageError(str("axis ", axis_name(axis),
                           ": its index follows from those of dp and cp. Give them ",
                           "instead; dp counts all data-parallel ranks."));
    }
    if (axis != Axis::dp_shard) return at.set(axis, index);
    at.set(Axis::dp_shard, index % size(Axis::dp_shard));
    at.set(Axis::dp_replicate, index / size(Axis::dp_shard));
  });
  at.set(Axis::ep, index(kShardAxes, at) % size(Axis::ep));
  return at;
}

void Axes::set_given(Axis axis, int size) {
  if (size < 0) {
    throw UsageError(str("axis ", axis_name(axis), ": got ", size, " ranks; must be at least 1"));
  }
  given_[axis] = size;
}

void Axes::set(Axis axis, int size) {
  const int shards = this->size(Axis::dp_shard);
  set_given(axis, size);
  if (axis == Axis::dp_shard) given_[axis] = size * given_[Axis::dp_replicate];
  if (axis == Axis::dp_replicate) given_[Axis::dp_shard] = shards * size;
}

Axes Axes::with_dp(int dp) const {
  Axes other = *this;
  other.set_dp(dp);
  return other;
}

bool Axes::replicas_divide() const {
  const int replicas = given_[Axis::dp_replicate];
  return replicas >= 1 && dp() % replicas == 0;
}

void Axes::check_replicas() const {
  if (replicas_divide()) return;
  throw UsageError(str("--dp-replicate ", given_[Axis::dp_replicate], ": must divide the ", dp(),
                       " data-parallel ranks (--dp)"),
                   "dp-replicate");
}

bool Axes::experts_divide() const {
  const int experts = given_[Axis::ep];
  return experts >= 1 && shards() % experts == 0;
}

void Axes::check_experts() const {
  if (experts_divide()) return;
  throw UsageError(str("--ep ", given_[Axis::ep], ": must divide the ", shards(),
                       " ranks that shard state (dp · cp",
                       given_[Axis::dp_replicate] > 1 ? " / dp_replicate" : "", ")"),
                   "ep");
}

std::vector<int> Axes::same_experts(const std::vector<int>& ranks, const Coordinate& at) const {
  std::vector<int> same;
  for (const int rank : ranks) {
    if (coordinate_of(rank)[Axis::ep] == at[Axis::ep]) same.push_back(rank);
  }
  return same;
}

Axes Axes::with(Axis axis, int size) const {
  Axes other = *this;
  other.set(axis, size);
  return other;
}

// Returns the product, or the largest int64 if the product is larger.
static std::int64_t bounded_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max()
                                                : product;
}

std::int64_t Axes::world() const {
  std::int64_t product = 1;
  for (const Axis axis : kFactorAxes) product = bounded_product(product, given(axis));
  return product;
}

static void check_set(AxisSet axes) {
  if (!axes.contains(Axis::ep) || axes.without(kShardAxes) == axes) return;
  throw UsageError(
      "a group along ep and along cp or dp: the ranks of ep are among those of cp and dp");
}

std::int64_t Axes::ranks(AxisSet axes) const {
  check_set(axes);
  std::int64_t product = 1;
  for (const Axis axis : axes) product = bounded_product(product, size(axis));
  return product;
}

AxisSet Axes::wide(AxisSet axes) const {
  AxisSet wide = axes;
  for (const Axis axis : axes) {
    if (size(axis) == 1) wide = wide.without(axis);
  }
  return wide;
}

void Axes::check_world(std::int64_t ranks) const {
  check_replicas();
  check_experts();
  if (world() == ranks && ranks > 0) return;
  throw UsageError(str("mesh ", words(" × "), " for ", ranks,
                       " ranks: the product of the axes must be the number of ranks, and each "
                       "axis at least 1"));
}

Coordinate Axes::coordinate_of(std::int64_t rank) const {
  Coordinate at;
  for (const Axis axis : AxisSet::all()) {
    at.set(axis, static_cast<int>(rank % size(axis)));
    rank /= size(axis);
  }
  at.set(Axis::ep, index(kShardAxes, at) % std::max(1, size(Axis::ep)));
  return at;
}

int Axes::index(AxisSet axes, const Coordinate& at) const {
  int index = 0, stride = 1;
  for (const Axis axis : axes) {
    index += at[axis] * stride;
    stride *= size(axis);
  }
  return index;
}

std::vector<int> Axes::ranks_along(AxisSet axes, const Coordinate& at) const {
  check_set(axes);
  if (axes.contains(Axis::ep)) {
    // Ranks along the other axes and along the axes that shard state, if they are in the ep group
    // of `at`.
    const int experts = size(Axis::ep), block = index(kShardAxes, at) / experts;
    std::vector<int> ranks;
    for (const int rank : ranks_along(axes.without(Axis::ep).with(kShardAxes), at)) {
      if (index(kShardAxes, coordinate_of(rank)) / experts == block) ranks.push_back(rank);
    }
    return ranks;
  }
  std::vector<int> ranks = {rank_of(at)};
  int stride = 1;
  for (const Axis axis : AxisSet::all()) {
    if (axes.contains(axis)) {
      // Every rank so far, at each index of this axis. Outer axes come later, so ranks ascend.
      std::vector<int> wider;
      wider.reserve(ranks.size() * static_cast<std::size_t>(size(axis)));
      for (int index = 0; index < size(axis); ++index) {
        for (const int rank : ranks) wider.push_back(rank + (index - at[axis]) * stride);
      }
      ranks = std::move(wider);
    }
    stride *= size(axis);
  }
  return ranks;
}

std::string Axes::text() const {
  std::string out;
  for (const Axis axis : kPrintedAxes) {
    if (is_optional(axis) && given(axis) == 1) continue;
    out += str(out.empty() ? "" : ",", axis_name(axis), "=", given(axis));
  }
  return out;
}

std::string Axes::words(std::string_view separator) const {
  return words(separator, AxisSet::all().with(Axis::ep));
}

std::string Axes::words(std::string_view separator, AxisSet axes) const {
  std::string out;
  for (const Axis axis : kPrintedAxes) {
    if (!axes.contains(axis)) continue;
    if (axis == Axis::dp_replicate) {
      if (given(axis) > 1) out += str(" (", given(axis), " replicas)");
      continue;
    }
    if (axis == Axis::ep) {
      if (given(axis) > 1) out += str(" (ep ", given(axis), ")");
      continue;
    }
    if (is_optional(axis) && given(axis) == 1) continue;
    out += str(out.empty() ? "" : separator, axis_name(axis), " ", given(axis));
  }
  return out;
}

}  // namespace tessera
