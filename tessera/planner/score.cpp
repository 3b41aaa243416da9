#include "tessera/planner/score.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {
namespace {

// Between the two nearest ranks, in proportion.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Score score(std::vector<ScoredRow> rows) {
  if (rows.empty()) throw UsageError("--score: got no rows, wanted at least one measured step");
  Score result;
  std::vector<double> errors;
  for (ScoredRow& row : rows) {
    if (!(row.measured > 0 && std::isfinite(row.measured))) {
      throw UsageError(
          str("--score: ", row.label, ": got a step of ", row.measured, " s, wanted more than 0"));
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
  struct Key {
    const char* name;
    int (*of)(const Question&);
  };
  constexpr Key kScoreKeys[] = {{"tp", [](const Question& q) { return q.tp(); }},
                                {"pp", [](const Question& q) { return q.pp(); }},
                                {"dp", [](const Question& q) { return q.dp(); }},
                                {"nodes", [](const Question& q) { return q.nodes; }}};
  std::vector<ScoreGroup> groups;
  for (const Key& key : kScoreKeys) {
    std::map<int, ScoreGroup> by_value;
    for (const ScoredRow& row : score.rows) {
      ScoreGroup& group = by_value[key.of(row.question)];
      ++group.rows;
      group.mean += std::abs(row.error());
      group.bias += row.error();
    }
    for (auto& [value, group] : by_value) {
      group.by = key.name, group.value = str(value);
      group.mean /= static_cast<double>(group.rows);
      group.bias /= static_cast<double>(group.rows);
      groups.push_back(group);
    }
  }
  return groups;
}

}  // namespace tessera::planner
