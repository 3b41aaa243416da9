#include "tessera/tensor_parallel/sharded.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "tessera/core/errors.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/normals.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/parallel_for.h"
#include "tessera/nn/unallocated.h"

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

// Elements per task of a thread.
constexpr std::int64_t kFillGrain = 1 << 15;
// Elements of the fp32 buffer for a parameter that is not filled in place.
constexpr std::int64_t kFillAtOnce = 1 << 22;

}  // namespace

std::vector<ParamSpec> find_specs(const torch::nn::Module& model, const std::string& prefix) {
  std::vector<ParamSpec> all;
  add_specs(model, prefix.empty() ? prefix : prefix + ".", all);
  return all;
}

void fill_normal_range(const at::Tensor& out, const ParamSpec& spec, const Axes& axes,
                       const Coordinate& coordinate, std::int64_t begin, std::uint64_t seed,
                       double deviation, double mean) {
  if (nn::gpu::takes(out) && out.scalar_type() == at::kFloat && out.is_contiguous()) {
    const std::vector<Run> runs = local_runs(spec, axes, coordinate);
    // from_blob requires mutable memory, but only reads it.
    const at::Tensor table =
        at::from_blob(const_cast<Run*>(runs.data()),
                      {static_cast<std::int64_t>(runs.size() * sizeof(Run))}, at::kByte)
            .to(out.device());
    kernels::cuda::Normals args;
    args.seed = seed;
    args.stream = stream_of(spec.name);
    args.deviation = static_cast<float>(deviation);
    args.mean = static_cast<float>(mean);
    args.runs = static_cast<const Run*>(table.const_data_ptr());
    args.run_count = runs.size();
    args.begin = begin;
    args.count = out.numel();
    kernels::cuda::fill_normals(args, out.mutable_data_ptr<float>(), nn::gpu::stream_of(out));
    return;
  }
  if (!out.is_cpu() || out.scalar_type() != at::kFloat || !out.is_contiguous()) {
    throw UsageError(str("Initial values of ", quote(spec.name), " cannot be written to ",
                         c10::toString(out.scalar_type()), " on ", out.device().str(),
                         ". The tensor must be contiguous fp32, on the CPU or on a GPU with CUDA "
                         "kernels."));
  }
  const Philox random(seed, stream_of(spec.name));
  const std::vector<Run> runs = local_runs(spec, axes, coordinate);
  const auto offset = static_cast<float>(mean);
  auto* to = out.mutable_data_ptr<float>();
  nn::parallel_for(0, out.numel(), kFillGrain, [&](std::int64_t from, std::int64_t end) {
    // Finds the first run that ends after the beginning of this range.
    auto run = std::partition_point(runs.begin(), runs.end(), [&](const Run& each) {
      return each.local + each.count <= begin + from;
    });
    for (std::int64_t at = from; at < end; ++run) {
      const std::int64_t next = run == runs.end() ? end : std::min(end, run->local - begin);
      if (next > at) std::fill(to + at, to + next, 0.0f);  // padding
      at = std::max(at, next);
      if (run == runs.end() || at == end) return;
      const std::int64_t inside = begin + at - run->local;
      const std::int64_t count = std::min(end - at, run->count - inside);
      if (deviation == 0) {
        std::fill_n(to + at, count, offset);
      } else {
        fill_normals(random, static_cast<std::uint64_t>(run->whole + inside),
                     static_cast<std::uint64_t>(count), static_cast<float>(deviation), to + at);
        if (offset != 0) {
          for (std::int64_t i = at; i < at + count; ++i) to[i] += offset;
        }
      }
      at += count;
    }
  });
}

void fill_normal(const at::Tensor& part, const ParamSpec& spec, const Axes& axes,
                 const Coordinate& coordinate, std::uint64_t seed, double deviation, double mean) {
  const at::NoGradGuard no_grad;
  if (part.is_cpu() && part.scalar_type() == at::kFloat && part.is_contiguous()) {
    fill_normal_range(part, spec, axes, coordinate, 0, seed, deviation, mean);
    return;
  }
  const bool flat = part.is_contiguous();
  const std::int64_t each = flat ? std::min(part.numel(), kFillAtOnce) : part.numel();
  const at::Tensor values = at::empty({each}, at::kFloat);
  for (std::int64_t begin = 0; begin < part.numel(); begin += each) {
    const at::Tensor some = values.narrow(0, 0, std::min(each, part.numel() - begin));
    fill_normal_range(some, spec, axes, coordinate, begin, seed, deviation, mean);
    (flat ? part.view(-1).narrow(0, begin, some.numel()) : part)
        .copy_(flat ? some : some.view(part.sizes()));
  }
}

void fill_uniform_range(const at::Tensor& out, const ParamSpec& spec, const Axes& axes,
                        const Coordinate& coordinate, std::int64_t begin, std::uint64_t seed,
                        double bound, double mean) {
  const at::NoGradGuard no_grad;
  const Philox random(seed, stream_of(spec.name));
  const at::Tensor values = at::empty({out.numel()}, at::kFloat).zero_();
  auto* to = values.mutable_data_ptr<float>();
  for (const Run& run : local_runs(spec, axes, coordinate)) {
    const std::int64_t from = std::max(begin, run.local);
    const std::int64_t end = std::min(begin + out.numel(), run.local + run.count);
    for (std::int64_t at = from; at < end; ++at) {
      const double even = random.uniform(static_cast<std::uint64_t>(run.whole + at - run.local));
      to[at - begin] = static_cast<float>(mean + bound * (2 * even - 1));
    }
  }
  out.copy_(values.view(out.sizes()));
}

void fill_uniform(const at::Tensor& part, const ParamSpec& spec, const Axes& axes,
                  const Coordinate& coordinate, std::uint64_t seed, double bound, double mean) {
  fill_uniform_range(part, spec, axes, coordinate, 0, seed, bound, mean);
}

void initialize(torch::nn::Module& model, const Axes& axes, const Coordinate& coordinate,
                std::uint64_t seed, double deviation) {
  const at::NoGradGuard no_grad;
  const std::vector<ParamSpec> specs = find_specs(model);
  std::size_t next = 0;
  for (const auto& item : model.named_parameters()) {
    const ParamSpec& spec = specs[next++];
    const at::Tensor& param = item.value();
    if (param.is_meta() || nn::is_unallocated(param)) continue;
    if (spec.name.ends_with("bias")) {
      param.zero_();
    } else if (param.dim() == 1) {
      param.fill_(1.0);
    } else {
      fill_normal(param, spec, axes, coordinate, seed, deviation);
    }
  }
}

}  // namespace tessera::tensor_parallel
