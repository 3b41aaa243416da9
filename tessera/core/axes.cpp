#include "tessera/core/axes.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

constexpr const char* kAxesWanted = "wanted axes and sizes such as dp=2,tp=2,pp=2";

int parse_axis_size(std::string_view name, std::string_view text) {
  int size = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, size);
  if (error != std::errc() || at != end || size < 1) {
    throw UsageError(
        str("axis ", name, ": got ", quote(text), ", wanted a number of ranks, ", "1 or more"));
  }
  return size;
}

}  // namespace

std::size_t axis_index(std::string_view name) {
  for (std::size_t i = 0; i < kAxes; ++i) {
    if (kAxisNames[i] == name) return i;
  }
  const std::vector<std::string> names(kAxisNames.begin(), kAxisNames.end());
  throw UsageError(str("axis ", quote(name), ": there is none; wanted one of ", join(names, ", "),
                       did_you_mean(name, names)));
}

Place::Place(std::initializer_list<Axis> where) {
  for (const Axis& axis : where) set(axis.name, axis.size);
}

Axes::Axes(std::initializer_list<Axis> axes) : Axes() {
  for (const Axis& axis : axes) set(axis.name, axis.size);
}

Axes::Axes(std::string_view text) : Axes() {
  std::array<bool, kAxes> named{};
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    if (equals == std::string_view::npos) {
      throw UsageError(str("axes: got ", quote(text), ", ", kAxesWanted));
    }
    const std::string_view name = part.substr(0, equals);
    const std::size_t i = axis_index(name);
    if (named[i]) throw UsageError(str("axis ", name, ": got it twice in ", quote(text)));
    named[i] = true;
    size_[i] = parse_axis_size(name, part.substr(equals + 1));
    begin = end + 1;
  }
}

void Axes::set(std::string_view axis, int size) {
  const std::size_t i = axis_index(axis);
  if (size < 0) throw UsageError(str("axis ", axis, ": got ", size, " ranks, wanted at least 1"));
  size_[i] = size;
}

Axes Axes::with(std::string_view axis, int size) const {
  Axes other = *this;
  other.set(axis, size);
  return other;
}

std::int64_t Axes::world() const {
  std::int64_t ranks = 1;
  for (const int size : size_) {
    if (__builtin_mul_overflow(ranks, std::int64_t{size}, &ranks)) {
      return std::numeric_limits<std::int64_t>::max();
    }
  }
  return ranks;
}

void Axes::check_world(std::int64_t ranks) const {
  if (world() == ranks && ranks > 0) return;
  throw UsageError(str("mesh ", words(" × "), " for ", ranks,
                       " ranks: the product of the axes must be the number of ranks, and each "
                       "axis at least 1"));
}

Place Axes::place_of(std::int64_t rank) const {
  Place place;
  for (std::size_t i = 0; i < kAxes; ++i) {
    place.index_[i] = static_cast<int>(rank % size_[i]);
    rank /= size_[i];
  }
  return place;
}

std::vector<int> Axes::ranks_along(std::string_view axis, const Place& place) const {
  std::vector<int> ranks;
  Place at = place;
  for (int i = 0; i < size(axis); ++i) {
    at.set(axis, i);
    ranks.push_back(rank_of(at));
  }
  return ranks;
}

std::array<Axis, kAxes> Axes::list() const {
  std::array<Axis, kAxes> all;
  for (std::size_t i = 0; i < kAxes; ++i) all[i] = {kAxisNames[i], size_[i]};
  return all;
}

std::array<Axis, kAxes> Axes::written() const {
  std::array<Axis, kAxes> all = list();
  std::swap(all[0], all[1]);  // data parallelism first, as everybody does
  return all;
}

std::string Axes::text() const {
  std::string out;
  for (const Axis& axis : written()) {
    out += str(out.empty() ? "" : ",", axis.name, "=", axis.size);
  }
  return out;
}

std::string Axes::words(std::string_view separator) const {
  std::string out;
  for (const Axis& axis : written()) {
    out += str(out.empty() ? "" : separator, axis.name, " ", axis.size);
  }
  return out;
}

}  // namespace tessera
