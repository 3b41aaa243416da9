#pragma once

#include <algorithm>
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
// Returns the name in tables: that of the axis, or "replicas".
std::string_view axis_title(Axis axis);
// Returns the flag that sets the axis: "--dp".
std::string axis_flag(Axis axis);
// Returns a noun phrase for help texts: "tensor-parallel ranks".
std::string_view axis_help(Axis axis);

// Returns "dp · cp · tp · pp": the factors of the number of ranks, for messages.
std::string axis_product();

// Coordinate of a rank on each axis of the mesh.
class Coordinate {
 public:
  Coordinate() = default;
  // {{Axis::tp, 1}}. Axes that are not named are 0.
  Coordinate(std::initializer_list<std::pair<Axis, int>> where) {
    for (const auto& [axis, index] : where) index_[axis] = index;
  }

  // Index along an axis.
  int operator[](Axis axis) const { return index_[axis]; }
  // Sets the index along one axis.
  void set(Axis axis, int index) { index_[axis] = index; }
  int tp() const { return index_[Axis::tp]; }
  int pp() const { return index_[Axis::pp]; }

  friend bool operator==(const Coordinate&, const Coordinate&) = default;

 private:
  PerAxis<int> index_;
};

// Number of ranks along each axis: Axes("dp=2,tp=2,pp=2"). An axis that is not named has 1. The
// planner uses a size of 0 for an axis that it is to choose.
//
// [Note: replicas] Users give dp, the number of data-parallel ranks, and dp_replicate, the number
// of groups of them that each hold all state: "dp=8,dp_replicate=2" shards over 4 ranks.
// dp_replicate must divide dp; check_replicas() checks that.
class Axes {
 public:
  Axes() : given_(1) {}
  // Implicit so that string literals convert.
  Axes(const char* text) : Axes(std::string_view(text)) {}
  // Throws UsageError for an unknown or repeated name and a size below 1.
  explicit Axes(std::string_view text);
  // Implicit, as for literals. A template so that braces always denote a list of axes.
  template <std::same_as<std::string> Text>
  Axes(const Text& text) : Axes(std::string_view(text)) {}
  // {{Axis::tp, 2}}. Axes that are not named have 1 rank.
  Axes(std::initializer_list<std::pair<Axis, int>> sizes);

  // Number of ranks along an axis.
  int size(Axis axis) const {
    const int given = given_[axis];
    // check_replicas() rejects 0 replicas.
    return axis == Axis::dp_shard ? given / std::max(1, given_[Axis::dp_replicate]) : given;
  }
  // Throws UsageError for a negative size.
  void set(Axis axis, int size);
  // Returns a copy in which one axis has another size.
  Axes with(Axis axis, int size) const;
  int tp() const { return size(Axis::tp); }
  // Number of data-parallel ranks: shards times replicas.
  int dp() const { return given_[Axis::dp_shard]; }
  int pp() const { return size(Axis::pp); }

  // Size of an axis as given by the user: [Note: replicas].
  int given(Axis axis) const { return given_[axis]; }
  // Throws UsageError for a negative size.
  void set_given(Axis axis, int size);
  // Changes the number of data-parallel ranks, and keeps the number of replicas.
  void set_dp(int dp) { set_given(Axis::dp_shard, dp); }
  // Returns a copy with another number of data-parallel ranks and the same number of replicas.
  Axes with_dp(int dp) const;
  // Returns the axes of a set that have more than one rank.
  AxisSet wide(AxisSet axes) const;
  // Number of ranks that work on the same samples: those along all axes but the data-parallel ones.
  std::int64_t model_ranks() const { return ranks(AxisSet::all().without(kDataAxes)); }
  // Number of ranks among which the engine shards the state of a replica.
  int shards() const { return static_cast<int>(ranks(kShardAxes)); }
  // Returns true if ep divides shards().
  bool experts_divide() const;
  // Throws UsageError otherwise.
  void check_experts() const;
  // Returns those of some ranks that have the same experts as `at`: [Note: expert ranks].
  std::vector<int> same_experts(const std::vector<int>& ranks, const Coordinate& at) const;
  // Index of a coordinate among the ranks along these axes, ordered by rank.
  int index(AxisSet axes, const Coordinate& at) const;
  // Returns true if dp_replicate divides dp.
  bool replicas_divide() const;
  // Throws UsageError otherwise.
  void check_replicas() const;

  // Number of ranks. The largest int64 if the product is larger.
  std::int64_t world() const;
  // Number of ranks in a group along these axes. ep together with an axis of kShardAxes throws
  // UsageError, because its ranks are among theirs.
  std::int64_t ranks(AxisSet axes) const;
  // Throws UsageError unless each axis has 1 rank or more and their product is `ranks`.
  void check_world(std::int64_t ranks) const;

  // Coordinate of a rank in [0, world()).
  Coordinate coordinate_of(std::int64_t rank) const;
  // Coordinate written as "tp=1,dp=3"; axes that are not named are 0. `dp` counts all data-parallel
  // ranks. Throws UsageError for an unknown or repeated name and an index outside its axis.
  Coordinate coordinate_named(std::string_view text) const;
  // Rank at a coordinate.
  int rank_of(const Coordinate& at) const { return index(AxisSet::all(), at); }
  // Ranks that differ from `at` along these axes only, in ascending order. Throws UsageError as
  // ranks() does.
  std::vector<int> ranks_along(AxisSet axes, const Coordinate& at) const;

  std::string text() const;                             // "dp=2,tp=2,pp=2"
  std::string words(std::string_view separator) const;  // "dp 2 × tp 2 × pp 2"
  // As above, of these axes only.
  std::string words(std::string_view separator, AxisSet axes) const;

  friend bool operator==(const Axes&, const Axes&) = default;

 private:
  PerAxis<int> given_;
};

// Returns {"dp": 2, "dp_replicate": 1, "tp": 2, "pp": 2}.
template <typename Json>
Json axes_json(const Axes& axes) {
  Json out;
  for (const Axis axis : kPrintedAxes) out[std::string(axis_name(axis))] = axes.given(axis);
  return out;
}

}  // namespace tessera
