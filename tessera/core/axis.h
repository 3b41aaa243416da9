#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace tessera {

// [Note: rank order] The axes of the mesh, innermost first. Tensor-parallel peers have neighboring
// ranks, so that they share a host, and then those that share the sequences of a batch (cp, context
// parallelism). The ranks that shard state come next (dp_shard), then the groups of them that hold
// the same state (dp_replicate, hybrid sharding). Pipeline is the outermost axis because it
// communicates least.
//
// [Note: expert ranks] ep, expert parallelism, adds no ranks. It divides the ranks that shard state
// (kShardAxes) into blocks of ep neighbors, and the experts of a layer are cut over the ranks of a
// block. All other parameters are unaffected. So ep is the index of a rank inside its block, and a
// function of cp and dp_shard: Axes::coordinate_of sets it, and Axes::rank_of ignores it.
//
// To add an axis, insert its name in this list. Every switch over Axis is exhaustive and has no
// default, so the compiler then reports each place that must handle it. TESSERA_DUMMY_AXIS adds an
// axis for the test that checks this.
#ifdef TESSERA_DUMMY_AXIS
#define TESSERA_AXES(AXIS) \
  AXIS(tp) AXIS(cp) AXIS(ep) AXIS(dp_shard) AXIS(dp_replicate) AXIS(pp) AXIS(dummy)
#else
#define TESSERA_AXES(AXIS) AXIS(tp) AXIS(cp) AXIS(ep) AXIS(dp_shard) AXIS(dp_replicate) AXIS(pp)
#endif

#define TESSERA_AXIS(name) name,
// A dimension of the mesh.
enum class Axis : std::uint8_t { TESSERA_AXES(TESSERA_AXIS) };
#undef TESSERA_AXIS

#define TESSERA_AXIS(name) Axis::name,
// Every axis, innermost first.
inline constexpr std::array kAllAxes = {TESSERA_AXES(TESSERA_AXIS)};
#undef TESSERA_AXIS

inline constexpr std::size_t kAxes = kAllAxes.size();

// Returns the name of an axis in flags, files, JSON and messages. dp_shard is called "dp": without
// replicas it spans all data-parallel ranks.
constexpr std::string_view axis_name(Axis axis) {
#define TESSERA_AXIS(name) #name,
  constexpr std::array<std::string_view, kAxes> kNames = {TESSERA_AXES(TESSERA_AXIS)};
#undef TESSERA_AXIS
  return axis == Axis::dp_shard ? "dp" : kNames[static_cast<std::size_t>(axis)];
}

// Returns the position of an axis when several are printed. By convention dp comes first.
constexpr int print_position(Axis axis) {
  switch (axis) {
    case Axis::dp_shard: return 0;
    case Axis::dp_replicate: return 1;
    case Axis::ep: return 2;
    case Axis::cp: return 3;
    case Axis::tp: return 4;
    case Axis::pp: return 5;
  }
  return -1;
}

// Returns true for axes whose size multiplies the number of ranks: all but ep, [Note: expert
// ranks].
constexpr bool multiplies_ranks(Axis axis) { return axis != Axis::ep; }

// Returns true for axes that texts leave out if they have one rank.
constexpr bool is_optional(Axis axis) {
  switch (axis) {
    case Axis::tp:
    case Axis::dp_shard:
    case Axis::pp: return false;
    case Axis::cp:
    case Axis::ep:
    case Axis::dp_replicate: return true;
  }
  return false;
}

namespace detail {
consteval std::array<Axis, kAxes> printed_axes() {
  std::array<Axis, kAxes> all = kAllAxes;
  for (const Axis axis : kAllAxes) all[static_cast<std::size_t>(print_position(axis))] = axis;
  return all;
}
}  // namespace detail

// Every axis in the order in which sizes are printed.
inline constexpr std::array<Axis, kAxes> kPrintedAxes = detail::printed_axes();

// One value for each axis.
template <typename T>
class PerAxis {
 public:
  // Value-initialized elements.
  constexpr PerAxis() = default;
  // The same value for every axis.
  constexpr explicit PerAxis(const T& value) { values_.fill(value); }

  // The value of an axis.
  constexpr T& operator[](Axis axis) { return values_[static_cast<std::size_t>(axis)]; }
  // The value of an axis.
  constexpr const T& operator[](Axis axis) const { return values_[static_cast<std::size_t>(axis)]; }

  // The values, innermost axis first.
  constexpr auto begin() const { return values_.begin(); }
  constexpr auto end() const { return values_.end(); }

  friend constexpr bool operator==(const PerAxis&, const PerAxis&) = default;

 private:
  std::array<T, kAxes> values_{};
};

// Returns the sum over all axes.
template <typename T>
constexpr T sum(const PerAxis<T>& values) {
  T total{};
  for (const T& value : values) total = total + value;
  return total;
}

// A set of axes, such as {Axis::dp_shard, Axis::tp}.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  // Implicit so that one axis converts to a set.
  constexpr AxisSet(Axis axis) : bits_(bit(axis)) {}
  // {Axis::dp_shard, Axis::tp}
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (const Axis axis : axes) bits_ |= bit(axis);
  }
  // Every axis that multiplies the number of ranks.
  static constexpr AxisSet all() {
    AxisSet set;
    for (const Axis axis : kAllAxes) {
      if (multiplies_ranks(axis)) set.bits_ |= bit(axis);
    }
    return set;
  }

  // Returns true if the axis is in the set.
  constexpr bool contains(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  // Returns the number of axes in the set.
  constexpr int count() const { return std::popcount(bits_); }
  // Returns this set without the axes of another.
  constexpr AxisSet without(AxisSet axes) const {
    AxisSet set = *this;
    set.bits_ &= ~axes.bits_;
    return set;
  }

  // Returns this set with the axes of another.
  constexpr AxisSet with(AxisSet axes) const {
    AxisSet set = *this;
    set.bits_ |= axes.bits_;
    return set;
  }

  // Iterates over the axes of a set, innermost first.
  class Iterator {
   public:
    // `left`: bits of the axes that are not visited yet.
    constexpr explicit Iterator(std::uint32_t left) : left_(left) {}
    // Returns the innermost axis that is left.
    constexpr Axis operator*() const { return static_cast<Axis>(std::countr_zero(left_)); }
    // Removes that axis.
    constexpr Iterator& operator++() {
      left_ &= left_ - 1;
      return *this;
    }
    friend constexpr bool operator==(Iterator, Iterator) = default;

   private:
    std::uint32_t left_;
  };
  constexpr Iterator begin() const { return Iterator(bits_); }
  constexpr Iterator end() const { return Iterator(0); }

  friend constexpr bool operator==(AxisSet, AxisSet) = default;
  // Arbitrary order, for use as a map key.
  friend constexpr auto operator<=>(AxisSet, AxisSet) = default;

 private:
  static constexpr std::uint32_t bit(Axis axis) {
    return std::uint32_t{1} << static_cast<unsigned>(axis);
  }
  std::uint32_t bits_ = 0;
};

// The axes along which ranks train on different samples.
inline constexpr AxisSet kDataAxes = {Axis::dp_shard, Axis::dp_replicate};
// The axes over which the engine shards the state of a replica.
inline constexpr AxisSet kShardAxes = {Axis::cp, Axis::dp_shard};
// The axes along which ranks train the same parameters on different tokens: other samples, or
// another part of the same ones.
inline constexpr AxisSet kTokenAxes = {Axis::cp, Axis::dp_shard, Axis::dp_replicate};
// The axes along which ranks hold different layers.
inline constexpr AxisSet kLayerAxes = {Axis::pp};
// The axes along which ranks compute the same layers of the same samples, in lockstep.
inline constexpr AxisSet kLockstepAxes = AxisSet::all().without(kDataAxes).without(kLayerAxes);
// The axes along which ranks communicate inside the layers.
inline constexpr AxisSet kInLayerAxes = kLockstepAxes.with(Axis::ep);

namespace detail {
consteval std::array<Axis, kAxes> table_axes() {
  std::array<Axis, kAxes> all{};
  std::size_t count = 0;
  for (const bool data : {false, true}) {
    for (const Axis axis : kAllAxes) {
      if (kDataAxes.contains(axis) == data) all[count++] = axis;
    }
  }
  return all;
}

constexpr bool is_factor(Axis axis) { return multiplies_ranks(axis) && axis != Axis::dp_replicate; }

consteval std::array<Axis, kAxes - 2> factor_axes() {
  std::array<Axis, kAxes - 2> all{};
  std::size_t count = 0;
  for (const Axis axis : table_axes()) {
    if (is_factor(axis)) all[count++] = axis;
  }
  return all;
}
}  // namespace detail

// Every axis in the order of the columns of tables: those that cut the model, innermost first, and
// then those of data parallelism.
inline constexpr std::array kTableAxes = detail::table_axes();

// The axes whose given sizes multiply to the number of ranks, in the same order: all but
// dp_replicate and ep, because dp counts their ranks ([Note: replicas] in axes.h).
inline constexpr std::array kFactorAxes = detail::factor_axes();

}  // namespace tessera
