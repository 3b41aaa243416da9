#pragma once

#include <string>
#include <vector>

#include "tessera/planner/question.h"

namespace tessera::planner {

// A measured forward and backward pass of one micro-batch on one device.
struct PassSample {
  Question question;  // settled; its hardware does not matter
  double seconds = 0;
};

// Seconds of that pass as the planner predicts it.
double pass_seconds(const Question& settled);

// The constants of software that bring the planner nearest to the samples: efficiencies of
// products, of fused attention and of elementwise passes, and the bytes of a logit. Peaks,
// bandwidth, units and launch of `start` are kept: they are measured one by one. Throws UsageError
// for no samples.
Hardware calibrate(Hardware start, const std::vector<PassSample>& samples);

// Mean of |predicted / measured - 1| over the samples.
double calibration_error(const Hardware& hardware, const std::vector<PassSample>& samples);

// An entry for --hardware-file.
std::string hardware_toml(const Hardware& hardware);

}  // namespace tessera::planner
