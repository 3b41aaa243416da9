#pragma once

#include <string>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/parallel/initial.h"
#include "tessera/tensor_parallel/adapter.h"

namespace tessera::models {

// [Note: adapters] of core/lora.h in the models here. A shape with ModelShape::lora makes a model
// with adapters whose base parameters are frozen (requires_grad is false): every engine then
// trains, reduces and keeps optimizer state only for the adapters.

// Returns the options of the adapters of a linear in a block ("qkv").
std::vector<tensor_parallel::AdapterOptions> adapters_beside(const ModelShape& shape,
                                                             const std::string& linear);
// Freezes all parameters of a layer except those of adapters.
void freeze_base(torch::nn::Module& layer);

// Returns the initialization of PEFT: A uniform within ±1 / sqrt(in) (Kaiming's bound with
// a = sqrt(5)), B zero.
Initial initial_of_adapter(const ParamSpec& spec);

}  // namespace tessera::models
