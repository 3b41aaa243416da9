#pragma once

#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/train/config.h"

namespace tessera {
struct StoredValues;  // parallel/initial.h
}

namespace tessera::train {

// What --init-from means: a folder of Hugging Face's, a checkpoint, or the folder of a run (its
// newest good checkpoint). Nothing here is collective; all throw UsageError that begins with the
// flag for what is neither, and DataError for what cannot be read.

// The model that lies there.
ModelShape initial_shape(const std::string& path);

// Looks at all files, and compares them with the model: before ranks are started.
void check_start(const TrainConfig& config, const Resolved& resolved);

// What the parameters start with; nothing where there is no --init-from.
StoredValues stored_start(const TrainConfig& config);

// Notes for the user about it.
std::vector<std::string> start_notes(const TrainConfig& config);

// The tokenizer's files and others that came with the model, or with the tokens that a new model is
// trained on, are kept in --save, for the export: [Note: companions]. By one rank.
void keep_companions(const TrainConfig& config);

}  // namespace tessera::train
