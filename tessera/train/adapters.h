#pragma once

#include "tessera/core/model_shape.h"
#include "tessera/parallel/initial.h"
#include "tessera/train/config.h"

namespace tessera::train {

// What --lora-rank, --lora-alpha, --lora-targets and --lora-dropout ask for beside this model, or
// what --lora-from has. Throws UsageError naming the flag, or DataError for a folder that is not as
// peft writes it.
Lora adapters_asked(const TrainConfig& config, const ModelShape& model);

// Whether --init-from is the model that the adapters of --lora-from were trained beside, where they
// say so: reads all of it. Throws UsageError naming the flag.
void check_adapters(const TrainConfig& config, const ModelShape& model);
// What to say where they do not, and the names differ: "" if nothing.
std::string adapters_note(const TrainConfig& config, const ModelShape& model);

// The same start, with the adapters of --lora-from if there are any.
StoredValues with_adapters(StoredValues start, const TrainConfig& config, const ModelShape& model);

}  // namespace tessera::train
