#pragma once

#include <string>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/train/metrics.h"

namespace tessera::train {

// The three tables at the end of a run: memory by category and bytes sent, predicted and measured,
// and where the time went (means per step, without the first ones).
std::string memory_table(const Summary& summary);
std::string traffic_table(const Summary& summary, const Axes& axes);
std::string time_table(const std::vector<StepMetrics>& steps);

}  // namespace tessera::train
