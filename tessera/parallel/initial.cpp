#include "tessera/parallel/initial.h"

#include <ATen/core/grad_mode.h>

#include "tessera/tensor_parallel/sharded.h"

namespace tessera {

Initial initial_default(const ParamSpec& spec) {
  if (spec.name.ends_with("bias")) return {};
  if (spec.shape.size() < 2) return {.mean = 1};
  return {.deviation = 0.02};
}

Initial initial_kept(const ParamSpec&) { return {.keep = true}; }

void fill_initial(const at::Tensor& param, const ParamSpec& spec, const Initial& initial,
                  std::uint64_t seed, int t, int tp) {
  if (initial.keep) return;
  const at::NoGradGuard no_grad;
  if (initial.deviation == 0) {
    param.fill_(initial.mean);
    return;
  }
  tensor_parallel::fill_normal(param, spec, t, tp, seed, initial.deviation);
  if (initial.mean != 0) param.add_(initial.mean);
}

}  // namespace tessera
