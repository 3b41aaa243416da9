#pragma once

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError for flags that need other flags or cannot be combined with them, in a run with
// this number of ranks.
void check_combinations(const TrainConfig& config, int ranks);

}  // namespace tessera::train
