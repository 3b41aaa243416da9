#pragma once

#include <string>
#include <vector>

#include "tessera/planner/run_config.h"

namespace tessera::planner {

// Measured forward and backward pass of one micro-batch on one device.
struct PassSample {
  RunConfig question = RunConfig::for_plan();  // resolved; its hardware is ignored
  double seconds = 0;
};

// Returns the predicted seconds of such a pass.
double pass_seconds(const RunConfig& resolved);

// Fits the software constants to the samples: efficiencies of products, of fused attention and of
// elementwise passes, and bytes per logit. Keeps the peaks, bandwidth, units and launch time of
// `start`, which are measured individually. Throws UsageError if there are no samples.
Hardware calibrate(Hardware start, const std::vector<PassSample>& samples);

// Returns the mean of |predicted / measured - 1| over the samples.
double calibration_error(const Hardware& hardware, const std::vector<PassSample>& samples);

// Returns an entry for --hardware-file.
std::string hardware_toml(const Hardware& hardware);

}  // namespace tessera::planner
