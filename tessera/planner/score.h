#pragma once

#include <string>
#include <vector>

#include "tessera/planner/question.h"

namespace tessera::planner {

// A measured step, and what it was.
struct ScoredRow {
  std::string label;     // how to name the row to its reader: a line number, a run's name
  Question question;     // settled
  double measured = 0;   // seconds
  double predicted = 0;  // filled in by score()
  double error() const { return predicted / measured - 1; }
};

// How far predictions are from measurements, as fractions of the measured time.
struct Score {
  double mean = 0, median = 0, percentile90 = 0;  // of the absolute error
  double bias = 0;                                // mean of the signed error
  std::vector<ScoredRow> rows;                    // worst first
};
// Rows that have something in common: "tp" "8".
struct ScoreGroup {
  std::string by, value;
  std::int64_t rows = 0;
  double mean = 0, bias = 0;
};
// By tp, pp, dp and nodes, each of their values: a bias is seen where a row of them is on one side.
std::vector<ScoreGroup> score_groups(const Score& score);
// Throws UsageError for no rows, or a measured time that is none.
Score score(std::vector<ScoredRow> rows);

}  // namespace tessera::planner
