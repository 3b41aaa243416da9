#pragma once

#include <string>
#include <vector>

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError for flags that need other flags or cannot be combined with them, in a run with
// this number of ranks.
void check_combinations(const RunConfig& config, int ranks);

// Returns a line for each setting that is not at its default but has no effect with the other
// settings. The line names the flag and the setting that it needs.
std::vector<std::string> idle_settings(const RunConfig& config, const Resolved& resolved);

}  // namespace tessera::train
