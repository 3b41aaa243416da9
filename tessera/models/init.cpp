#include "tessera/models/init.h"

#include <torch/nn/module.h>

#include <cmath>
#include <vector>

#include "tessera/core/lora.h"
#include "tessera/nn/unallocated.h"
#include "tessera/parallel/initial.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera::models {

void initialize(const at::Tensor& param, const ParamSpec& spec, const ModelShape& shape,
                std::uint64_t seed, const Axes& axes, const Coordinate& coordinate) {
  fill_initial(param, spec, initial_values(shape)(spec), seed, axes, coordinate);
}

InitialValues initial_values(const ModelShape& shape) {
  const double usual = shape.init_range;
  const double at_end =
      shape.rotary() ? usual : usual / std::sqrt(2 * static_cast<double>(shape.layers));
  const double norm = shape.norm_plus_one ? 0 : 1;
  return [at_end, usual, norm](const ParamSpec& spec) -> Initial {
    if (is_adapter_param(spec.name)) {  // as in PEFT: Kaiming's bound with a = sqrt(5), and 0
      if (spec.name.ends_with(".B")) return {};
      return {.uniform = 1 / std::sqrt(static_cast<double>(spec.shape.at(1)))};
    }
    if (spec.name.ends_with(".bias")) return {};
    if (spec.shape.size() == 1) return {.mean = norm};
    const bool ends_branch =
        spec.name.ends_with(".proj.weight") || spec.name.ends_with(".proj2.weight");
    return {.deviation = ends_branch ? at_end : usual};
  };
}

void initialize(torch::nn::Module& model, const ModelShape& shape, std::uint64_t seed,
                const Axes& axes, const Coordinate& coordinate) {
  const std::vector<ParamSpec> specs = tensor_parallel::find_specs(model);
  std::size_t next = 0;
  for (const auto& item : model.named_parameters()) {
    const ParamSpec& spec = specs.at(next++);
    if (item.value().is_meta() || nn::is_unallocated(item.value())) continue;
    initialize(item.value(), spec, shape, seed, axes, coordinate);
  }
}

}  // namespace tessera::models
