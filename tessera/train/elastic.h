#pragma once

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError if --elastic is not a range of ranks, or if `ranks` is outside of it.
void check_elastic(const TrainConfig& config, int ranks);

}  // namespace tessera::train
