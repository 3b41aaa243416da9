#pragma once

#include <vector>

#include "tessera/train/config.h"

namespace tessera::train {

// Throws UsageError that names the flag if the mesh or the pipeline cannot run on `ranks` ranks.
void check_mesh(const TrainConfig& config, const Resolved& resolved, int ranks);

// Returns the number of models::layers_of() on each stage of the pipeline, by --split.
std::vector<int> layers_of_stages(const TrainConfig& config, const Resolved& resolved);

}  // namespace tessera::train
