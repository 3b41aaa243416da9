#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/planner/fields.h"
#include "tessera/planner/run_config.h"

namespace tessera::planner {

// Measured step and its configuration.
struct ScoredRow {
  std::string label;  // name of the row in reports: a line number or a run's name
  RunConfig question = RunConfig::for_plan();  // resolved
  double measured = 0;                         // seconds
  double predicted = 0;                        // filled in by score()
  double error() const { return predicted / measured - 1; }
};

// Prediction errors, as fractions of the measured time.
struct Score {
  double mean = 0, median = 0, percentile90 = 0;  // of the absolute error
  double bias = 0;                                // mean of the signed error
  std::vector<ScoredRow> rows;                    // worst first
};
// Rows with an equal value of one key, such as "tp" "8".
struct ScoreGroup {
  std::string by, value;
  std::int64_t rows = 0;
  double mean = 0, bias = 0;
};
// Groups the rows by each size of an axis and each number of nodes, which shows where predictions
// are biased.
std::vector<ScoreGroup> score_groups(const Score& score);
// Predicts all rows and computes the errors. Throws UsageError if there are no rows or a measured
// time is not positive.
Score score(std::vector<ScoredRow> rows);

// Reads measured runs from a CSV file whose first line names settings, with underscores or dashes,
// and step_ms. A cell with a comma must be in double quotes. An empty cell means that the setting
// is not given; `defaults` supplies those. Throws UsageError with file and line.
std::vector<ScoredRow> read_runs(const std::string& path, const RunConfig& defaults,
                                 const Catalog& catalog);
std::vector<ScoredRow> parse_runs(std::string_view text, const std::string& where,
                                  const RunConfig& defaults, const Catalog& catalog);

}  // namespace tessera::planner
