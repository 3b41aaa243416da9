#pragma once

#include <vector>

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError, naming the flag, for a mesh or a pipeline that cannot be run on so many ranks.
void check_mesh(const TrainConfig& config, const Resolved& resolved, int ranks);

// How many of models::layers_of() each stage of the pipeline has, as --split says.
std::vector<int> layers_of_stages(const TrainConfig& config, const Resolved& resolved);

}  // namespace tessera::train
