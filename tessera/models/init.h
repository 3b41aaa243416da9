#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/core/model_shape.h"
#include "tessera/core/param_spec.h"
#include "tessera/parallel/parallelize.h"

namespace torch::nn {
class Module;
}

namespace tessera::models {

// Returns the published initialization of a language model: biases 0, norms 1, matrices normal with
// standard deviation init_range (0.02). In models with learned positions (GPT-2), matrices that end
// a residual branch have init_range / sqrt(2 · layers). Models like Llama have no such exception.
// Adapters: A uniform within ±1 / sqrt(in), B zero.
InitialValues initial_values(const ModelShape& shape);

// Fills a parameter with these values. `param` is the tensor of the rank at a coordinate. The
// values depend only on the seed and the parameter's name: not on the mesh, the dtype (they are
// rounded to it), the device, or earlier initializations. `param` must not be on the meta device.
void initialize(const at::Tensor& param, const ParamSpec& spec, const ModelShape& shape,
                std::uint64_t seed, const Axes& axes = {}, const Coordinate& coordinate = {});

// Fills all parameters of a model. Those without memory are skipped.
void initialize(torch::nn::Module& model, const ModelShape& shape, std::uint64_t seed,
                const Axes& axes = {}, const Coordinate& coordinate = {});

}  // namespace tessera::models
