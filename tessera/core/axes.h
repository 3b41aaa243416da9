#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/core/axis.h"

namespace tessera {

// Returns the axis with this name. Throws UsageError with the nearest name if there is none.
Axis axis_named(std::string_view name);
// Returns the axis with this name, or null.
const Axis* find_axis(std::string_view name);
// Returns a noun phrase for help texts: "tensor-parallel ranks".
std::string_view axis_help(Axis axis);

// Coordinate of a rank on each axis of the mesh.
class Coordinate {
 public:
  Coordinate() = default;
  // {{Axis::dp, 1}}. Axes that are not named are 0.
  Coordinate(std::initializer_list<std::pair<Axis, int>> where) {
    for (const auto& [axis, index] : where) index_[axis] = index;
  }

  // Index along an axis.
  int operator[](Axis axis) const { return index_[axis]; }
  // Moves it along one axis.
  void set(Axis axis, int index) { index_[axis] = index; }
  int tp() const { return index_[Axis::tp]; }
  int dp() const { return index_[Axis::dp]; }
  int pp() const { return index_[Axis::pp]; }

  friend bool operator==(const Coordinate&, const Coordinate&) = default;

 private:
  PerAxis<int> index_;
};

// Number of ranks along each axis: Axes("dp=2,tp=2,pp=2"). An axis that is not named has 1. A size
// of 0 means "to be chosen" where a question may leave that open.
class Axes {
 public:
  Axes() : size_(1) {}
  // Implicit so that string literals convert.
  Axes(const char* text) : Axes(std::string_view(text)) {}
  // Throws UsageError for an unknown or repeated name and a size that is not 1 or more.
  explicit Axes(std::string_view text);
  // Implicit, as for literals. A template so that braces always mean a list of axes.
  template <std::same_as<std::string> Text>
  Axes(const Text& text) : Axes(std::string_view(text)) {}
  // {{Axis::dp, 2}}. Axes that are not named have 1 rank.
  Axes(std::initializer_list<std::pair<Axis, int>> sizes);

  // Number of ranks along an axis.
  int size(Axis axis) const { return size_[axis]; }
  // Throws UsageError for a negative size.
  void set(Axis axis, int size);
  // Returns a copy in which one axis has another size.
  Axes with(Axis axis, int size) const;
  int tp() const { return size_[Axis::tp]; }
  int dp() const { return size_[Axis::dp]; }
  int pp() const { return size_[Axis::pp]; }

  // Number of ranks. The largest int64 if the product is larger.
  std::int64_t world() const;
  // Number of ranks in a group along these axes.
  std::int64_t ranks(AxisSet axes) const;
  // Throws UsageError unless each axis has 1 rank or more and their product is `ranks`.
  void check_world(std::int64_t ranks) const;

  // Coordinate of a rank in [0, world()).
  Coordinate coordinate_of(std::int64_t rank) const;
  // Rank at a coordinate.
  int rank_of(const Coordinate& at) const;
  // Ranks that differ from `at` along these axes only, in ascending order.
  std::vector<int> ranks_along(AxisSet axes, const Coordinate& at) const;

  std::string text() const;                             // "dp=2,tp=2,pp=2"
  std::string words(std::string_view separator) const;  // "dp 2 × tp 2 × pp 2"

  friend bool operator==(const Axes&, const Axes&) = default;

 private:
  PerAxis<int> size_;
};

// {"dp": 2, "tp": 2, "pp": 2}
template <typename Json>
Json axes_json(const Axes& axes) {
  Json out;
  for (const Axis axis : kPrintedAxes) out[std::string(axis_name(axis))] = axes.size(axis);
  return out;
}

}  // namespace tessera
