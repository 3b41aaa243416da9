#include "tessera/models/init.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/nn/module.h>

#include <cmath>
#include <string>

#include "tessera/core/philox.h"

namespace tessera::models {
namespace {

bool ends_with(std::string_view text, std::string_view end) { return text.ends_with(end); }

void fill_normal(const at::Tensor& param, std::string_view name, std::uint64_t seed,
                 double deviation) {
  const Philox random(seed, stream_of(name));
  const at::Tensor values = at::empty(param.sizes(), at::kFloat);
  const std::int64_t n = values.numel();
  auto* to = values.mutable_data_ptr<float>();
  at::parallel_for(0, (n + 1) / 2, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const auto two = random.normals(static_cast<std::uint64_t>(pair));
      to[2 * pair] = static_cast<float>(deviation) * two[0];
      if (2 * pair + 1 < n) to[2 * pair + 1] = static_cast<float>(deviation) * two[1];
    }
  });
  param.copy_(values);
}

}  // namespace

void initialise(const at::Tensor& param, std::string_view name, const planner::ModelShape& shape,
                std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  if (ends_with(name, ".bias")) {
    param.zero_();
  } else if (param.dim() == 1) {
    param.fill_(1.0);
  } else {
    const bool ends_branch = ends_with(name, ".proj.weight") || ends_with(name, ".proj2.weight");
    const double layers = static_cast<double>(shape.layers);
    fill_normal(param, name, seed, ends_branch ? 0.02 / std::sqrt(2 * layers) : 0.02);
  }
}

void initialise(torch::nn::Module& model, const planner::ModelShape& shape, std::uint64_t seed) {
  for (const auto& item : model.named_parameters()) {
    if (!item.value().is_meta()) initialise(item.value(), item.key(), shape, seed);
  }
}

}  // namespace tessera::models
