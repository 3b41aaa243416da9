#pragma once

#include <string>
#include <vector>

#include "tessera/train/config.h"

namespace tessera::train {

// Settings that are not at their default and yet change nothing, given the others: a line for each,
// which names the flag and what it would act with.
std::vector<std::string> idle_settings(const TrainConfig& config, const Resolved& resolved);

}  // namespace tessera::train
