#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// [Note: rank order] The axes along which a job is cut, innermost first: tensor-parallel peers have
// neighbouring ranks, so they share a host; data-parallel ones come next; pipeline stages are
// farthest apart, since they say least to each other. A new axis is a name at its place here; its
// size is 1 wherever nobody says otherwise.
inline constexpr std::array<std::string_view, 3> kAxisNames = {"tp", "dp", "pp"};
inline constexpr std::size_t kAxes = kAxisNames.size();
// What is counted along each, for helps.
inline constexpr std::array<std::string_view, kAxes> kAxisHelps = {
    "tensor-parallel ranks", "data-parallel ranks", "pipeline stages"};

// Where the axis stands in kAxisNames. Throws UsageError with the near name.
std::size_t axis_index(std::string_view name);

// One axis and how many ranks it has, or where a rank stands on it.
struct Axis {
  std::string_view name;
  int size = 1;
};

// Where a rank stands on each axis.
class Place {
 public:
  Place() = default;
  Place(std::initializer_list<Axis> where);  // {{"dp", 1}}; not named: 0
  // By all axes at once.
  static Place of(int dp, int tp = 0, int pp = 0) {
    Place place;
    place.index_ = {tp, dp, pp};
    return place;
  }

  // Throws UsageError for a name that is no axis, as set() does.
  int at(std::string_view axis) const { return index_[axis_index(axis)]; }
  // Moves it along one axis.
  void set(std::string_view axis, int index) { index_[axis_index(axis)] = index; }
  int tp() const { return index_[0]; }
  int dp() const { return index_[1]; }
  int pp() const { return index_[2]; }

  friend bool operator==(const Place&, const Place&) = default;

 private:
  friend class Axes;
  std::array<int, kAxes> index_{};
};

// How many ranks there are along each axis: Axes("dp=2,tp=2,pp=2"). An axis that is not named has
// one. A size of 0 stands for "to be chosen" where a question may leave that open.
class Axes {
 public:
  Axes() { size_.fill(1); }
  // As the next, so that a literal will do.
  Axes(const char* text) : Axes(std::string_view(text)) {}
  // Throws UsageError for an unknown or repeated name and a size that is not 1 or more.
  explicit Axes(std::string_view text);
  // Implicit, as for literals. A template so that braces always mean a list of axes.
  template <std::same_as<std::string> Text>
  Axes(const Text& text) : Axes(std::string_view(text)) {}
  // {{"dp", 2}}; not named: 1.
  Axes(std::initializer_list<Axis> axes);
  // By all axes at once.
  static Axes of(int dp, int tp = 1, int pp = 1) { return {{"dp", dp}, {"tp", tp}, {"pp", pp}}; }

  // Throws UsageError for a name that is no axis.
  int size(std::string_view axis) const { return size_[axis_index(axis)]; }
  // Throws UsageError for a negative size.
  void set(std::string_view axis, int size);
  // A copy in which one axis is another size.
  Axes with(std::string_view axis, int size) const;
  int tp() const { return size_[0]; }
  int dp() const { return size_[1]; }
  int pp() const { return size_[2]; }

  // All ranks; the greatest number there is where the product is beyond it.
  std::int64_t world() const;
  // Throws UsageError unless each axis has 1 rank or more, and all together as many as `ranks`.
  void check_world(std::int64_t ranks) const;

  // Where a rank of 0 to world() - 1 stands, and back.
  Place place_of(std::int64_t rank) const;
  // The rank at a place.
  int rank_of(const Place& place) const {
    int rank = 0;
    for (std::size_t i = kAxes; i-- > 0;) rank = rank * size_[i] + place.index_[i];
    return rank;
  }
  // The ranks along an axis through a place, in order.
  std::vector<int> ranks_along(std::string_view axis, const Place& place) const;

  // Every axis, innermost first; and as people write them: dp, tp, pp.
  std::array<Axis, kAxes> list() const;
  std::array<Axis, kAxes> written() const;
  std::string text() const;                             // "dp=2,tp=2,pp=2"
  std::string words(std::string_view separator) const;  // "dp 2 × tp 2 × pp 2"

  friend bool operator==(const Axes&, const Axes&) = default;

 private:
  std::array<int, kAxes> size_;
};

// {"dp": 2, "tp": 2, "pp": 2}
template <typename Json>
Json axes_json(const Axes& axes) {
  Json out;
  for (const Axis& axis : axes.written()) out[std::string(axis.name)] = axis.size;
  return out;
}

}  // namespace tessera
