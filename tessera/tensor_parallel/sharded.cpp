#include "tessera/tensor_parallel/sharded.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "tessera/core/philox.h"

namespace tessera::tensor_parallel {
namespace {

void add_specs(const torch::nn::Module& module, const std::string& prefix,
               std::vector<ParamSpec>& all) {
  const auto* sharded = dynamic_cast<const Sharded*>(&module);
  const std::vector<ParamSpec> cut = sharded ? sharded->specs() : std::vector<ParamSpec>();
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    ParamSpec spec;
    spec.name = item.key();
    spec.shape = item.value().sizes().vec();
    for (const ParamSpec& each : cut) {
      if (each.name == item.key()) spec = each;
    }
    spec.name = prefix + spec.name;
    all.push_back(std::move(spec));
  }
  for (const auto& child : module.named_children()) {
    add_specs(*child.value(), prefix + child.key() + ".", all);
  }
}

// values[i] = deviation · normal number first + i.
void fill_run(float* values, std::int64_t first, std::int64_t count, const Philox& random,
              float deviation) {
  // A pair of numbers comes from one block.
  const std::int64_t begin_pair = first / 2, end_pair = (first + count + 1) / 2;
  at::parallel_for(begin_pair, end_pair, 1 << 14, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t pair = begin; pair < end; ++pair) {
      const auto two = random.normals(static_cast<std::uint64_t>(pair));
      for (std::int64_t i = 0; i < 2; ++i) {
        const std::int64_t at = 2 * pair + i - first;
        if (at >= 0 && at < count) values[at] = deviation * two[static_cast<std::size_t>(i)];
      }
    }
  });
}

}  // namespace

std::vector<ParamSpec> find_specs(const torch::nn::Module& model, const std::string& prefix) {
  std::vector<ParamSpec> all;
  add_specs(model, prefix.empty() ? prefix : prefix + ".", all);
  return all;
}

void fill_normal(const at::Tensor& part, const ParamSpec& spec, int t, int tp, std::uint64_t seed,
                 double deviation) {
  const at::NoGradGuard no_grad;
  const Philox random(seed, stream_of(spec.name));
  const at::Tensor values = at::empty(part.sizes(), at::kFloat);
  auto* to = values.mutable_data_ptr<float>();
  for (const Run& run : local_runs(spec, t, tp)) {
    fill_run(to + run.local, run.whole, run.count, random, static_cast<float>(deviation));
  }
  part.copy_(values);
}

void initialise(torch::nn::Module& model, int t, int tp, std::uint64_t seed, double deviation) {
  const at::NoGradGuard no_grad;
  const std::vector<ParamSpec> specs = find_specs(model);
  std::size_t next = 0;
  for (const auto& item : model.named_parameters()) {
    const ParamSpec& spec = specs[next++];
    const at::Tensor& param = item.value();
    if (param.is_meta()) continue;
    if (spec.name.ends_with("bias")) {
      param.zero_();
    } else if (param.dim() == 1) {
      param.fill_(1.0);
    } else {
      fill_normal(param, spec, t, tp, seed, deviation);
    }
  }
}

}  // namespace tessera::tensor_parallel
