#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/dashboard/ask.h"

namespace tessera::dashboard {

// Use of the experts of each layer in the course of a run, from the "experts" of metrics lines. The
// lines are summed into columns of equally many lines. If there would be too many columns, pairs
// become one.
class ExpertSeries {
 public:
  // Most numbers of all columns together.
  explicit ExpertSeries(std::size_t most_numbers = std::size_t{1} << 19)
      : most_numbers_(most_numbers) {}

  // Adds the "experts" of the line of a step. Ignores them if they are invalid or have other layers
  // or numbers of experts than the columns.
  void add(std::int64_t step, const Json& experts);
  // Removes the columns that contain this step or a later one.
  void remove_from(std::int64_t step);
  void clear();

  bool empty() const { return columns_.empty(); }
  std::size_t columns() const { return columns_.size(); }
  // Returns {"layers": names, "layer", "from", "to", "tokens", "mean", "imbalance", "dropped",
  // "entropy"}: first and last step of each column; tokens of each expert [expert][column] and
  // their mean over the experts [column], summed over the layers. The others are means over the
  // layers. `layer` selects one; "": all. Only {"layers"} if there is no such layer.
  Json json(const std::string& layer) const;

 private:
  struct Layer {
    std::string name;
    std::size_t experts = 0;
    std::size_t first = 0;  // index of its numbers in a column: tokens, and those of Extra
  };
  // Numbers of a layer after the tokens of its experts.
  enum Extra : std::uint8_t { kDroppedPairs, kEntropySum, kExtras };
  struct Column {
    std::int64_t from = 0, to = 0;
    std::size_t lines = 0;
    std::vector<double> numbers;
  };

  // Sets the layers from those of a line. Returns false if they are invalid.
  bool describe(const Json& experts);
  // Returns the numbers of a line; none if they do not fit the layers.
  std::vector<double> numbers_of(const Json& experts) const;
  std::size_t most_columns() const;
  void halve();

  std::size_t most_numbers_;
  std::vector<Layer> layers_;
  std::size_t width_ = 0;  // numbers of a column
  std::size_t lines_per_column_ = 1;
  std::vector<Column> columns_;
};

}  // namespace tessera::dashboard
