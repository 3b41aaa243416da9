#include "tessera/planner/score.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/portable_math.h"
#include "tessera/core/text.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

// Interpolates linearly between the two nearest values.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

constexpr std::string_view kMeasured = "step_ms";
constexpr std::int64_t kMaxBytes = 64 << 20;  // several hundred thousand runs

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
      // A doubled quote inside quotes is one quote.
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
  if (read_double(text, value) != std::errc() || !(value > 0 && value < 1e15)) {
    throw UsageError(str(kMeasured, " ", quote(text), ": must be milliseconds greater than 0"));
  }
  return value;
}

}  // namespace

Score score(std::vector<ScoredRow> rows) {
  if (rows.empty())
    throw UsageError(Flag("score"), "the file has no rows; at least one measured step is required");
  Score result;
  std::vector<double> errors;
  for (ScoredRow& row : rows) {
    if (!(row.measured > 0 && std::isfinite(row.measured))) {
      throw UsageError(Flag("score"),
                       str(row.label, ": step time ", row.measured, " s must be greater than 0"));
    }
    row.predicted = step_time(row.question).step();
    errors.push_back(std::abs(row.error()));
    result.mean += errors.back();
    result.bias += row.error();
  }
  std::sort(errors.begin(), errors.end());
  result.mean /= static_cast<double>(errors.size());
  result.bias /= static_cast<double>(errors.size());
  result.median = quantile(errors, 0.5);
  result.percentile90 = quantile(errors, 0.9);
  std::stable_sort(rows.begin(), rows.end(), [](const ScoredRow& a, const ScoredRow& b) {
    return std::abs(a.error()) > std::abs(b.error());
  });
  result.rows = std::move(rows);
  return result;
}

std::vector<ScoreGroup> score_groups(const Score& score) {
  std::vector<ScoreGroup> groups;
  const auto group_by = [&](std::string_view name, const auto& key_of) {
    std::map<int, ScoreGroup> by_value;
    for (const ScoredRow& row : score.rows) {
      ScoreGroup& group = by_value[key_of(row.question)];
      ++group.rows;
      group.mean += std::abs(row.error());
      group.bias += row.error();
    }
    for (auto& [value, group] : by_value) {
      group.by = name, group.value = str(value);
      group.mean /= static_cast<double>(group.rows);
      group.bias /= static_cast<double>(group.rows);
      groups.push_back(group);
    }
  };
  const bool context = std::any_of(score.rows.begin(), score.rows.end(),
                                   [](const ScoredRow& row) { return row.question.cp() > 1; });
  for (const Axis axis : kFactorAxes) {
    if (axis == Axis::cp && !context) continue;
    group_by(axis_name(axis), [&](const RunConfig& q) { return q.axes.given(axis); });
  }
  group_by("nodes", [](const RunConfig& q) { return q.nodes; });
  return groups;
}

std::vector<ScoredRow> parse_runs(std::string_view text, const std::string& where,
                                  const RunConfig& defaults, const Catalog& catalog) {
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
          if (column != kMeasured)
            find_field(Command::plan, column);  // throws for an unknown setting
        }
        if (!measured) throw UsageError("there is no column step_ms with the measured step times");
        continue;
      }
      if (cells.size() != columns.size()) {
        throw UsageError(str("the row has ", cells.size(), " cells, the header ", columns.size()));
      }
      RunConfig settings = defaults;
      ScoredRow row;
      row.label = str("line ", number);
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (columns[i] == kMeasured) {
          row.measured = milliseconds(cells[i]) / 1000;
        } else if (!cells[i].empty()) {
          settings.set(columns[i], cells[i]);
        }
      }
      row.question = resolve(look_up(settings, catalog));
      if (row.question.state_only())
        throw UsageError(Flag("params"), "the step time requires the shape of a model");
      rows.push_back(std::move(row));
    } catch (const UsageError& error) {
      throw error.within(str(where, ", line ", number));
    }
  }
  return rows;
}

std::vector<ScoredRow> read_runs(const std::string& path, const RunConfig& defaults,
                                 const Catalog& catalog) {
  const std::string text = read_small_file(path, kMaxBytes, "a CSV file", "--score");
  if (text.empty())
    throw UsageError(Flag("score"), str(quote(path), " is empty; must be a CSV file"));
  return parse_runs(text, path, defaults, catalog);
}

}  // namespace tessera::planner
