#pragma once

#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/train/config.h"

namespace tessera {
struct StoredValues;  // parallel/parallelize.h
}

namespace tessera::train {

// Functions for --init-from, which names a Hugging Face folder, a checkpoint, or the folder of a
// run (its newest good checkpoint). None of them is collective. They throw UsageError that begins
// with the flag if the path is none of these, and DataError if it cannot be read.

// Returns the shape of the stored model.
ModelShape initial_shape(const std::string& path);

// Checks all files and compares them with the model. Called before ranks are started.
void check_start(const RunConfig& config, const Resolved& resolved);

// Returns the initial values of the parameters; empty without --init-from.
StoredValues stored_start(const RunConfig& config);

// Returns notes for the user about the stored model.
std::vector<std::string> start_notes(const RunConfig& config);

// Copies the tokenizer's files and other files that came with the model, or with the tokens that a
// new model is trained on, into --save for the export: [Note: companions]. Called by one rank.
void keep_companions(const RunConfig& config);

}  // namespace tessera::train
