#pragma once

#include <cstdint>

#include "tessera/cli/import.h"
#include "tessera/cli/import_megatron_words.h"
#include "tessera/core/model_shape.h"

namespace tessera::cli {

// Returns the experts that the flags of Megatron-LM describe, without settings of training. `ffn`:
// width of the model's MLP. Adds notes on properties that Tessera does not have. Throws UsageError
// that names the invalid flag.
Experts megatron_experts(const MegatronWords& words, std::int64_t layers, std::int64_t ffn,
                         Imported& out);

// Returns true if settings can describe these experts. Others need a config.json.
bool settings_describe(const Experts& experts);

// Sets --experts and the other settings that change the parameters.
void set_expert_sizes(const MegatronWords& words, const Experts& experts, Imported& out);

// Sets the settings of experts in training: losses, capacity, biases. Does nothing without experts.
void set_expert_training(const MegatronWords& words, Imported& out);

}  // namespace tessera::cli
