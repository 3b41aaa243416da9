#pragma once

#include <string>
#include <vector>

#include "tessera/train/config.h"

namespace tessera::train {

// Returns a line for each setting that is not at its default but has no effect with the other
// settings. The line names the flag and the setting that it needs.
std::vector<std::string> idle_settings(const TrainConfig& config, const Resolved& resolved);

}  // namespace tessera::train
