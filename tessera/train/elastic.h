#pragma once

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError if --elastic is no range of ranks, or if the run's are not in it.
void check_elastic(const TrainConfig& config, int ranks);

}  // namespace tessera::train
