#pragma once

#include "tessera/core/model_shape.h"
#include "tessera/parallel/parallelize.h"
#include "tessera/train/config.h"

namespace tessera::train {

// Returns the adapters that --lora-rank, --lora-alpha, --lora-targets and --lora-dropout request
// for this model, or those of --lora-from. Throws UsageError that names the flag, or DataError if
// the folder does not have the format of peft.
Lora requested_adapters(const RunConfig& config, const ModelShape& model);

// Throws UsageError that names the flag if --init-from is not the model that the adapters of
// --lora-from were trained with. Reads all of the model. Does nothing if the adapters have no
// fingerprint of it.
void check_adapters(const RunConfig& config, const ModelShape& model);
// Returns a warning if the adapters have no such fingerprint and the names of the models differ;
// otherwise "".
std::string adapters_note(const RunConfig& config, const ModelShape& model);

// Adds the adapters of --lora-from, if any, to the initial values.
StoredValues with_adapters(StoredValues start, const RunConfig& config, const ModelShape& model);

}  // namespace tessera::train
