#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"
#include "tessera/parallel/initial.h"

namespace torch::nn {
class Module;
}

namespace tessera::models {

// A parameter of a language model as it was published to start: biases 0, norms 1, matrices normal
// with deviation init_range (0.02). GPT-2, the models with learned positions: those that end a
// residual branch with that over sqrt(2 · layers). Llama and its kin have no such exception.
InitialValues initial_values(const ModelShape& shape);

// Gives a parameter these values. `param` is the tensor of the rank at a coordinate. The values
// depend on the seed, the parameter's name, and nothing else: not on the mesh, the dtype (they are
// rounded to it), the device, or what was initialized before. `param` may not be on the meta
// device.
void initialise(const at::Tensor& param, const ParamSpec& spec, const ModelShape& shape,
                std::uint64_t seed, const Axes& axes = {}, const Coordinate& coordinate = {});

// All parameters of a model, by their specs. Those without memory stay so.
void initialise(torch::nn::Module& model, const ModelShape& shape, std::uint64_t seed,
                const Axes& axes = {}, const Coordinate& coordinate = {});

}  // namespace tessera::models
