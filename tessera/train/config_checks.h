#pragma once

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError for flags that want others, or cannot stand beside them, in a run on so many
// ranks.
void check_together(const TrainConfig& config, int ranks);

}  // namespace tessera::train
