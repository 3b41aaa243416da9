#pragma once

#include <string>
#include <vector>

#include "tessera/core/axes.h"
#include "tessera/train/metrics.h"
#include "tessera/train/trainer.h"

namespace tessera::train {

// Return the tables for the end of a run: memory by category and bytes sent, each predicted and
// measured, and time by phase (means per step, without the first steps).
std::string memory_table(const Summary& summary);
std::string traffic_table(const Summary& summary, const Axes& axes);
std::string time_table(const std::vector<StepMetrics>& steps);
// Returns everything that a run prints at its end: the tables, and lines on what they do not show.
std::string final_report(const Trainer& trainer, const Summary& summary,
                         const std::vector<std::string>& answers);

// Returns the text behind the progress bar: loss, speed and memory of a step.
std::string step_line(const StepMetrics& step);

}  // namespace tessera::train
