#include "tessera/zero/plan.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

#include "tessera/core/errors.h"
#include "tessera/core/shard.h"
#include "tessera/core/text.h"

namespace tessera::zero {
namespace {

// Owning unit of each parameter: the innermost unit that contains all its uses.
class Owners {
 public:
  Owners(torch::nn::Module& model, const std::vector<nn::FoundUnit>& units) {
    std::unordered_map<const torch::nn::Module*, int> unit_of_module;
    for (std::size_t i = 0; i < units.size(); ++i) {
      unit_of_module[units[i].module] = static_cast<int>(i) + 1;
    }
    walk(model, {0}, unit_of_module);
  }
  int of(const at::Tensor& param) const { return chains_.at(param.unsafeGetTensorImpl()).back(); }

 private:
  using Chain = std::vector<int>;

  void walk(const torch::nn::Module& module, Chain chain,
            const std::unordered_map<const torch::nn::Module*, int>& unit_of_module) {
    if (const auto found = unit_of_module.find(&module); found != unit_of_module.end()) {
      chain.push_back(found->second);
    }
    for (const auto& param : module.named_parameters(/*recurse=*/false)) {
      const auto [entry, fresh] = chains_.try_emplace(param.value().unsafeGetTensorImpl(), chain);
      if (fresh) continue;
      Chain& known = entry->second;  // keep the common prefix, which starts with the root
      const auto end = std::mismatch(known.begin(), known.end(), chain.begin(), chain.end()).first;
      known.erase(end, known.end());
    }
    for (const auto& child : module.children()) walk(*child, chain, unit_of_module);
  }

  std::unordered_map<const c10::TensorImpl*, Chain> chains_;
};

// Returns the type in which a parameter is stored: that of the layout if it is fp32, otherwise its
// own.
at::ScalarType stored_as(const at::Tensor& param, const StateLayout& layout,
                         const ParamPolicy& policy) {
  const bool cast = param.scalar_type() == at::kFloat && layout.param == 2 && !policy.keep_fp32;
  if (!cast) return param.scalar_type();
  return layout.fp16() ? at::kHalf : at::kBFloat16;
}

at::ScalarType traveling(at::ScalarType grad, GradCompression compression) {
  if (grad != at::kFloat) return grad;
  if (compression == GradCompression::bf16) return at::kBFloat16;
  return compression == GradCompression::fp16 ? at::kHalf : grad;
}

Space space_for(const at::Tensor& param, const Options& options, const ParamPolicy& policy,
                const DataGroups& groups) {
  const StateLayout& layout = options.layout;
  Space space(groups);
  space.dtype = stored_as(param, layout, policy);
  space.device = param.device();
  space.trainable = param.requires_grad();
  const bool narrow = c10::elementSize(space.dtype) < 4;
  space.grad_dtype = narrow && layout.grad == 4 ? at::kFloat : space.dtype;
  space.travel_dtype = groups.all.size() > 1 ? traveling(space.grad_dtype, options.grad_compression)
                                             : space.grad_dtype;
  // A 16-bit model with the layout fp32 also has a master copy.
  space.master = narrow && (layout.param == 4 || layout.master == 4);
  return space;
}

Range make_range(const Plan& plan, int space, std::vector<int> params, std::string label) {
  Range range;
  range.space = space;
  range.label = std::move(label);
  range.params = std::move(params);
  const int ranks = plan.space_of(range).ranks();
  auto parts = std::make_shared<std::vector<std::size_t>>();
  for (const int index : range.params) {
    const Param& param = plan.params[static_cast<std::size_t>(index)];
    parts->push_back(static_cast<std::size_t>(param.shard * ranks));
  }
  const Param& first = plan.params[static_cast<std::size_t>(range.params.front())];
  const Param& last = plan.params[static_cast<std::size_t>(range.params.back())];
  range.begin = first.offset;
  range.end = last.offset + last.shard * ranks;
  range.parts = std::move(parts);
  return range;
}

void add_units(Plan& plan, const std::vector<nn::FoundUnit>& found) {
  plan.units.resize(found.size() + 1);
  plan.units[0].name = "root";
  for (std::size_t i = 0; i < found.size(); ++i) {
    plan.units[i + 1].name = found[i].name;
    plan.units[i + 1].hook = found[i].unit;
  }
  for (std::size_t i = 0; i < plan.params.size(); ++i) {
    plan.units[static_cast<std::size_t>(plan.params[i].unit)].params.push_back(static_cast<int>(i));
  }
}

// Assigns offsets: the parameters of each space are contiguous, unit after unit.
void place(Plan& plan) {
  for (UnitPlan& unit : plan.units) {
    std::map<int, std::vector<int>> by_space;
    for (const int index : unit.params) {
      Param& param = plan.params[static_cast<std::size_t>(index)];
      Space& space = plan.spaces[static_cast<std::size_t>(param.space)];
      param.offset = space.size;
      space.size += param.shard * space.ranks();
      space.params.push_back(index);
      by_space[param.space].push_back(index);
    }
    for (auto& [space, params] : by_space) {
      unit.ranges.push_back(make_range(plan, space, std::move(params), unit.name));
    }
  }
}

// Gradients arrive roughly in reverse order. A bucket is closed when it is large enough. Buckets
// are ordered by when their last gradient is expected.
void fill_buckets(Plan& plan, std::int64_t bucket_bytes) {
  for (std::size_t s = 0; s < plan.spaces.size(); ++s) {
    const Space& space = plan.spaces[s];
    if (!space.trainable) continue;
    const auto size = static_cast<std::int64_t>(c10::elementSize(space.travel_dtype));
    std::vector<int> params;
    std::int64_t bytes = 0;
    const auto close = [&] {
      if (params.empty()) return;
      std::reverse(params.begin(), params.end());
      const std::string label = plan.params[static_cast<std::size_t>(params.front())].name;
      const int model_chunk = plan.params[static_cast<std::size_t>(params.front())].model_chunk;
      Range range = make_range(plan, static_cast<int>(s), std::exchange(params, {}), label);
      plan.buckets.push_back({std::move(range), std::exchange(bytes, 0), model_chunk});
    };
    for (auto at = space.params.rbegin(); at != space.params.rend(); ++at) {
      const Param& param = plan.params[static_cast<std::size_t>(*at)];
      if (!params.empty() &&
          plan.params[static_cast<std::size_t>(params.back())].model_chunk != param.model_chunk) {
        close();
      }
      params.push_back(*at);
      bytes += param.shard * space.ranks() * size;
      if (bytes >= bucket_bytes) close();
    }
    close();
  }
  // Buckets of one space are already in order; buckets of different spaces are ordered by unit.
  const auto first_unit = [&](const Bucket& bucket) {
    return plan.params[static_cast<std::size_t>(bucket.range.params.front())].unit;
  };
  std::stable_sort(plan.buckets.begin(), plan.buckets.end(),
                   [&](const Bucket& a, const Bucket& b) { return first_unit(a) > first_unit(b); });
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    for (const int index : plan.buckets[b].range.params) {
      plan.params[static_cast<std::size_t>(index)].bucket = static_cast<int>(b);
    }
  }
}

}  // namespace

std::string Space::describe() const {
  return str(trainable ? "" : "frozen ", c10::toString(dtype), " on ", device.str(),
             of_experts ? ", of experts" : "");
}

std::int64_t Plan::param_bytes(bool frozen) const {
  std::int64_t bytes = 0;
  for (const Space& space : spaces) {
    if (!space.trainable && !frozen) continue;
    bytes += space.size * static_cast<std::int64_t>(c10::elementSize(space.dtype));
  }
  return bytes;
}

static std::int64_t bytes_sent_of(const Space& space) {
  return space.trainable
             ? space.size * static_cast<std::int64_t>(c10::elementSize(space.travel_dtype))
             : 0;
}

std::int64_t Plan::grad_bytes() const {
  std::int64_t bytes = 0;
  for (const Space& space : spaces) bytes += bytes_sent_of(space);
  return bytes;
}

std::int64_t Plan::shared_grad_bytes() const {
  std::int64_t bytes = 0;
  for (const Space& space : spaces) bytes += space.of_experts ? 0 : bytes_sent_of(space);
  return bytes;
}

Plan make_plan(torch::nn::Module& model, const EngineOptions& options, const DataGroups& groups) {
  Plan plan;
  plan.model_chunks = options.axes.model_chunks;
  const std::vector<nn::FoundUnit> found = nn::find_units(model);
  const Owners owners(model, found);
  std::unordered_map<const c10::TensorImpl*, bool> seen;
  std::map<std::tuple<at::ScalarType, at::ScalarType, bool, bool, bool, std::string>, int> spaces;
  for (const auto& entry : model.named_parameters()) {
    const at::Tensor& tensor = entry.value();
    if (!tensor.defined() || std::exchange(seen[tensor.unsafeGetTensorImpl()], true)) continue;
    if (!at::isFloatingType(tensor.scalar_type()) || tensor.layout() != at::kStrided) {
      throw UsageError(
          tessera::str("parameter ", quote(entry.key()), " is ",
                       c10::toString(tensor.scalar_type()), " ", tensor.layout(),
                       ". The engine trains only dense floating-point parameters. Register it as a "
                       "buffer instead"));
    }
    // Autograd delivers gradients on one thread per device, and buckets are not thread-safe.
    if (!plan.params.empty() && tensor.device() != plan.params.front().tensor.device()) {
      throw UsageError(str("parameter ", quote(entry.key()), " is on ", tensor.device().str(),
                           ", but ", quote(plan.params.front().name), " is on ",
                           plan.params.front().tensor.device().str(),
                           ". Move the model to one device: model->to(device)"));
    }
    Param param;
    param.name = options.axes.name ? options.axes.name(entry.key()) : entry.key();
    param.tensor = tensor;
    param.policy = options.policy(param.name, tensor);
    param.numel = tensor.numel();
    param.sizes = tensor.sizes().vec();
    param.strides = tensor.is_non_overlapping_and_dense()
                        ? tensor.strides().vec()
                        : at::empty(tensor.sizes(), at::device(at::kMeta)).strides().vec();
    const bool expert = options.axes.of_expert && options.axes.of_expert(param.name);
    if (expert) plan.expert_groups = options.axes.expert_groups;
    const DataGroups& data = expert ? *plan.expert_groups : groups;
    param.shard = shard_size(param.numel, data.shard.size());
    param.unit = owners.of(tensor);
    if (options.axes.model_chunk) param.model_chunk = options.axes.model_chunk(entry.key());
    plan.model_chunks = std::max(plan.model_chunks, param.model_chunk + 1);
    Space space = space_for(tensor, options, param.policy, data);
    space.of_experts = expert;
    const auto key = std::make_tuple(space.dtype, space.grad_dtype, space.trainable, space.master,
                                     expert, space.device.str());
    const auto [at, fresh] = spaces.try_emplace(key, static_cast<int>(plan.spaces.size()));
    if (fresh) plan.spaces.push_back(space);
    param.space = at->second;
    plan.params.push_back(std::move(param));
  }
  // A part of a model may have none, such as a pipeline stage that only computes the loss.
  if (plan.params.empty() && options.axes.group.size() == 1) {
    throw UsageError("The model has no parameters, so there is nothing to train");
  }
  if (plan.params.empty() && options.axes.group.on_device()) {
    throw UsageError(
        "This rank's part of the model has no parameters, so it has no device on which to take "
        "part in a step on GPUs. Give each rank a layer with parameters (split)");
  }
  add_units(plan, found);
  place(plan);
  fill_buckets(plan, options.bucket_bytes > 0 ? options.bucket_bytes
                                              : default_bucket_bytes(plan.shared_grad_bytes()));
  return plan;
}

at::Tensor view_of(const Param& param, const at::Tensor& flat, std::int64_t base) {
  return flat.as_strided(param.sizes, param.strides, flat.storage_offset() + param.offset - base);
}

ShardRange Plan::own_shard(const Param& param) const {
  return shard_of(param, space_of(param).groups.shard.rank());
}

ShardRange shard_of(const Param& param, int rank) {
  return nth_shard(param.numel, param.shard, rank);
}

}  // namespace tessera::zero
