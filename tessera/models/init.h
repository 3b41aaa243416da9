#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "tessera/planner/model_shape.h"

namespace torch::nn {
class Module;
}

namespace tessera::models {

// A parameter of a GPT as GPT-2 starts: biases 0, norms 1, matrices normal with deviation 0.02,
// those that end a residual branch with that over sqrt(2 · layers). The values depend on the seed,
// the parameter's name, and nothing else: not on the dtype (they are rounded to it), the device, or
// what was initialised before. `param` may not be on the meta device.
void initialise(const at::Tensor& param, std::string_view name, const planner::ModelShape& shape,
                std::uint64_t seed);

// All parameters of a model, by their names. Does nothing on the meta device.
void initialise(torch::nn::Module& model, const planner::ModelShape& shape, std::uint64_t seed);

}  // namespace tessera::models
