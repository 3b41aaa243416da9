#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

// Columns of text with two spaces between them; names to the left, numbers to the right.
class Table {
 public:
  // One letter a column: 'l' or 'r'.
  explicit Table(std::string alignment, std::string indent = "  ")
      : alignment_(std::move(alignment)), indent_(std::move(indent)) {}

  void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  std::string alignment_, indent_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera::cli
