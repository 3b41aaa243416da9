#include "tessera/planner/runs_file.h"

#include <charconv>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"

namespace tessera::planner {
namespace {

constexpr std::string_view kMeasured = "step_ms";
constexpr std::int64_t kMostBytes = 64 << 20;  // some hundred thousand runs

std::string_view trimmed(std::string_view text) {
  const std::size_t from = text.find_first_not_of(" \t\r");
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r") - from + 1);
}

std::vector<std::string> csv_cells(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == '"') {
      // Two in a row inside quotes are one.
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        cells.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (c == ',' && !quoted) {
      cells.emplace_back();
    } else {
      cells.back() += c;
    }
  }
  if (quoted) throw UsageError("a quotation mark is not closed");
  for (std::string& cell : cells) cell = std::string(trimmed(cell));
  return cells;
}

double milliseconds(const std::string& text) {
  double value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size() || !(value > 0 && value < 1e15)) {
    throw UsageError(str(kMeasured, ": got ", quote(text), ", wanted milliseconds, more than 0"));
  }
  return value;
}

}  // namespace

std::vector<ScoredRow> parse_runs(std::string_view text, const std::string& where,
                                  const Settings& defaults, const Catalogue& catalogue) {
  std::vector<ScoredRow> rows;
  std::vector<std::string> columns;
  int number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty()) continue;
    try {
      std::vector<std::string> cells = csv_cells(line);
      if (columns.empty()) {
        columns = std::move(cells);
        bool measured = false;
        for (const std::string& column : columns) {
          measured = measured || column == kMeasured;
          if (column != kMeasured) Settings().has(column);  // throws for what is no field
        }
        if (!measured)
          throw UsageError("there is no column step_ms, which holds what was measured");
        continue;
      }
      if (cells.size() != columns.size()) {
        throw UsageError(str("got ", cells.size(), " cells, wanted ", columns.size()));
      }
      Settings settings = defaults;
      ScoredRow row;
      row.label = str("line ", number);
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (columns[i] == kMeasured) {
          row.measured = milliseconds(cells[i]) / 1000;
        } else if (!cells[i].empty()) {
          settings.set(columns[i], cells[i]);
        }
      }
      row.question = settle(settings.question(catalogue));
      if (row.question.state_only()) throw UsageError("--params: a size alone has no time");
      rows.push_back(std::move(row));
    } catch (const UsageError& error) {
      throw UsageError(str(where, ", line ", number, ": ", error.what()));
    }
  }
  return rows;
}

std::vector<ScoredRow> read_runs(const std::string& path, const Settings& defaults,
                                 const Catalogue& catalogue) {
  const std::string text = read_small_file(path, kMostBytes, "a CSV file", "--score");
  if (text.empty()) throw UsageError(str("--score: ", quote(path), " is empty; wanted a CSV file"));
  return parse_runs(text, path, defaults, catalogue);
}

}  // namespace tessera::planner
