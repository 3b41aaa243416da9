#include "tessera/core/table.h"

#include <algorithm>

namespace tessera {

// Counts all bytes except UTF-8 continuation bytes.
std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

std::string Table::text() const {
  std::vector<std::size_t> widths(alignment_.size(), 0);
  for (const auto& cells : rows_) {
    for (std::size_t i = 0; i < cells.size(); ++i)
      widths[i] = std::max(widths[i], columns_of(cells[i]));
  }
  std::string text;
  for (const auto& cells : rows_) {
    std::string line = indent_;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const std::string space(widths[i] - columns_of(cells[i]), ' ');
      if (i > 0) line += "  ";
      line += alignment_[i] == 'r' ? space + cells[i] : cells[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace tessera
