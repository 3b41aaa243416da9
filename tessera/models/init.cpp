#include "tessera/models/init.h"

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <cmath>
#include <vector>

#include "tessera/tensor_parallel/sharded.h"

namespace tessera::models {

void initialise(const at::Tensor& param, const ParamSpec& spec, const planner::ModelShape& shape,
                std::uint64_t seed, int t, int tp) {
  const at::NoGradGuard no_grad;
  if (spec.name.ends_with(".bias")) {
    param.zero_();
  } else if (spec.shape.size() == 1) {
    param.fill_(1.0);
  } else {
    const bool ends_branch =
        spec.name.ends_with(".proj.weight") || spec.name.ends_with(".proj2.weight");
    const double layers = static_cast<double>(shape.layers);
    tensor_parallel::fill_normal(param, spec, t, tp, seed,
                                 ends_branch ? 0.02 / std::sqrt(2 * layers) : 0.02);
  }
}

void initialise(torch::nn::Module& model, const planner::ModelShape& shape, std::uint64_t seed,
                int t, int tp) {
  const std::vector<ParamSpec> specs = tensor_parallel::find_specs(model);
  std::size_t next = 0;
  for (const auto& item : model.named_parameters()) {
    const ParamSpec& spec = specs.at(next++);
    if (!item.value().is_meta()) initialise(item.value(), spec, shape, seed, t, tp);
  }
}

}  // namespace tessera::models
