#include "tessera/models/lora.h"

#include <cmath>

namespace tessera::models {

std::vector<tensor_parallel::AdapterOptions> adapters_beside(const ModelShape& shape,
                                                             const std::string& linear) {
  std::vector<tensor_parallel::AdapterOptions> list;
  for (const Adapter& adapter : adapters_of(shape)) {
    if (adapter.linear != linear) continue;
    list.push_back({adapter.module, adapter.part, shape.lora.rank, shape.lora.scale()});
  }
  return list;
}

void freeze_base(torch::nn::Module& layer) {
  for (const auto& item : layer.named_parameters()) {
    if (!is_adapter_param(item.key())) item.value().set_requires_grad(false);
  }
}

Initial initial_of_adapter(const ParamSpec& spec) {
  if (spec.name.ends_with(".B")) return {};
  return {.uniform = 1 / std::sqrt(static_cast<double>(spec.shape.at(1)))};
}

}  // namespace tessera::models
