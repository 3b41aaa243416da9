#pragma once

#include <string>

#include "tessera/cli/experiment_run.h"

namespace tessera::cli {

// The table, what follows from it, and how far the planner was off.
std::string experiment_text(const Experiment& experiment, const ExperimentResults& results);
std::string experiment_json(const Experiment& experiment, const ExperimentResults& results,
                            const std::string& date);
// Total memory against dp; throws UsageError where there is nothing to draw.
std::string experiment_svg(const Experiment& experiment, const ExperimentResults& results);

// Of what was measured, by how much the planner was off, at most and in the middle.
struct PlannerMiss {
  int count = 0;
  double most = 0, median = 0;  // shares
};
PlannerMiss memory_miss(const ExperimentResults& results);
PlannerMiss time_miss(const ExperimentResults& results);
PlannerMiss simulator_miss(const ExperimentResults& results);

}  // namespace tessera::cli
