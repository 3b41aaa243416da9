#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

// What a terminal shows of UTF-8 where every character takes one column.
std::size_t columns_of(std::string_view text);

// Columns of text with two spaces between them; names to the left, numbers to the right.
class Table {
 public:
  // One letter a column: 'l' or 'r'.
  explicit Table(std::string alignment, std::string indent = "  ")
      : alignment_(std::move(alignment)), indent_(std::move(indent)) {}

  // Of as many cells as there are columns, or fewer.
  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  // A line for each row, without spaces at its end.
  std::string text() const;

 private:
  std::string alignment_, indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera
