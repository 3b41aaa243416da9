#pragma once

#include <string>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// Return the tables for the end of a run: memory by category and bytes sent, each predicted and
// measured, and time by phase (means per step, without the first steps).
std::string memory_table(const Summary& summary);
std::string traffic_table(const Summary& summary, const Axes& axes);
std::string time_table(const std::vector<StepMetrics>& steps);

}  // namespace tessera::train
