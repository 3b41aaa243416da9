#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// Returns the number of terminal columns of UTF-8 text, assuming one column per character.
std::size_t columns_of(std::string_view text);

// Text table with two spaces between columns.
class Table {
 public:
  // One letter per column: 'l' (left) or 'r' (right).
  explicit Table(std::string alignment, std::string indent = "  ")
      : alignment_(std::move(alignment)), indent_(std::move(indent)) {}

  // Adds a row with at most as many cells as there are columns.
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // Returns one line per row, without trailing spaces.
  std::string text() const;

 private:
  std::string alignment_, indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera
