#include "tessera/parallel/initial.h"

#include <ATen/ops/empty.h>

#include "tessera/checkpoint/shard.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/tensor_parallel/sharded.h"

namespace tessera {

Initial initial_default(const ParamSpec& spec) {
  if (spec.name.ends_with("bias")) return {};
  if (spec.shape.size() < 2) return {.mean = 1};
  return {.deviation = 0.02};
}

Initial initial_kept(const ParamSpec&) { return {.keep = true}; }

void fill_initial(const at::Tensor& param, const ParamSpec& spec, const Initial& initial,
                  std::uint64_t seed, const Axes& axes, const Coordinate& coordinate) {
  if (initial.keep) return;
  if (initial.uniform != 0) {
    tensor_parallel::fill_uniform(param, spec, axes, coordinate, seed, initial.uniform,
                                  initial.mean);
    return;
  }
  tensor_parallel::fill_normal(param, spec, axes, coordinate, seed, initial.deviation,
                               initial.mean);
}

void fill_initial_range(const at::Tensor& out, const ParamSpec& spec, const Initial& initial,
                        std::uint64_t seed, const Axes& axes, const Coordinate& coordinate,
                        std::int64_t begin) {
  if (initial.keep) {
    throw UsageError(str("parameter ", quote(spec.name),
                         " keeps the values of its layer (Initial::keep), which cannot be computed "
                         "without the layer"));
  }
  if (initial.uniform != 0) {
    tensor_parallel::fill_uniform_range(out, spec, axes, coordinate, begin, seed, initial.uniform,
                                        initial.mean);
    return;
  }
  tensor_parallel::fill_normal_range(out, spec, axes, coordinate, begin, seed, initial.deviation,
                                     initial.mean);
}

void fill_stored_range(const at::Tensor& out, const ParamSpec& spec, const StoredValues& stored,
                       const Axes& axes, const Coordinate& coordinate, std::int64_t begin) {
  const std::vector<Run> runs =
      checkpoint::cut(local_runs(spec, axes, coordinate), begin, out.numel());
  const at::Tensor host = out.is_cpu() ? out : at::empty({out.numel()}, at::kFloat);
  if (checkpoint::count_of(runs) != out.numel()) host.zero_();
  if (!runs.empty()) stored.read(spec, runs, host.mutable_data_ptr<float>());
  if (!out.is_cpu()) out.copy_(host);
}

}  // namespace tessera
