#pragma once

#include <string>

#include "tessera/cli/experiment_run.h"

namespace tessera::cli {

// Returns the table, comparisons with base rows, and the error of the planner.
std::string experiment_text(const Experiment& experiment, const ExperimentResults& results);
std::string experiment_json(const Experiment& experiment, const ExperimentResults& results,
                            const std::string& date);
// Plots total memory against dp. Throws UsageError if there are no points.
std::string experiment_svg(const Experiment& experiment, const ExperimentResults& results);

// Relative error of predictions over all measured rows: largest and median.
struct PredictionError {
  int count = 0;
  double most = 0, median = 0;  // relative to the measurement
};
PredictionError memory_error(const ExperimentResults& results);
PredictionError time_error(const ExperimentResults& results);
PredictionError simulator_error(const ExperimentResults& results);

}  // namespace tessera::cli
