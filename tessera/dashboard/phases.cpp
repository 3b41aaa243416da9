#include "tessera/dashboard/phases.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

namespace tessera::dashboard {
namespace {

constexpr std::size_t kMostRows = 64;
constexpr std::size_t kLastSteps = 50;

bool is_time(const std::string& name) { return name.size() > 2 && name.ends_with("_s"); }

Json list_at(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : Json::array();
}

// Returns the object with the ranks: the summary, or the last line that had them; null if none.
const Json& ranks_source(const RunSeries& series) {
  const Json& summary = series.summary();
  return summary.is_object() && summary.contains("ranks") ? summary : series.ranks();
}

// Returns the row of the rank that writes the lines.
Json writer_row(const std::vector<Point>& points) {
  const std::size_t count = std::min(kLastSteps, points.size());
  if (count == 0) return Json::array();
  Json row = {{"rank", 0}};
  for (std::size_t v = 0; v < kSeries; ++v) {
    const std::string name = kSeriesNames[v];
    if (!is_time(name) || name == "tokens_per_s") continue;
    double sum = 0;
    std::size_t present = 0;
    for (std::size_t i = points.size() - count; i < points.size(); ++i) {
      if (std::isfinite(points[i].values[v])) sum += points[i].values[v], ++present;
    }
    if (present > 0) row[name] = sum / static_cast<double>(present);
  }
  return Json::array({row});
}

// Selects the ranks to show: the slow ones, then the first ones up to kMostRows.
std::set<std::size_t> chosen(std::size_t ranks, const Json& slow_ranks) {
  std::set<std::size_t> rows;
  for (const Json& slow : slow_ranks) {
    const auto rank = slow.is_object() ? slow.find("rank") : slow.end();
    if (rows.size() >= kMostRows || !slow.is_object() || rank == slow.end()) continue;
    if (rank->is_number_unsigned() && rank->get<std::size_t>() < ranks)
      rows.insert(rank->get<std::size_t>());
  }
  for (std::size_t r = 0; r < ranks && rows.size() < kMostRows; ++r) rows.insert(r);
  return rows;
}

}  // namespace

Json phases_of(const RunSeries& series) {
  const Json& source = ranks_source(series);
  const auto columns = source.is_object() ? source.find("ranks") : source.end();
  if (!source.is_object() || columns == source.end() || !columns->is_object()) {
    return writer_row(series.points());
  }
  std::size_t ranks = 0;
  for (const auto& [name, column] : columns->items()) {
    if (column.is_array()) ranks = std::max(ranks, column.size());
  }
  Json rows = Json::array();
  for (const std::size_t rank : chosen(ranks, list_at(source, "slow_ranks"))) {
    Json row = {{"rank", rank}};
    for (const auto& [name, column] : columns->items()) {
      if (!is_time(name) || !column.is_array() || rank >= column.size()) continue;
      if (column[rank].is_number()) row[name] = column[rank];
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json stragglers_of(const RunSeries& series) {
  const Json& summary = series.summary();
  const Json& source = summary.is_object() ? summary : series.ranks();
  return source.is_object() ? list_at(source, "slow_ranks") : Json::array();
}

}  // namespace tessera::dashboard
