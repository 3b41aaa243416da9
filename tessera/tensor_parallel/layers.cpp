#include "tessera/tensor_parallel/layers.h"

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/embedding.h>

#include <algorithm>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/index.h"
#include "tessera/core/philox.h"
#include "tessera/core/text.h"
#include "tessera/nn/ops.h"
#include "tessera/tensor_parallel/adapter.h"
#include "tessera/tensor_parallel/fused_linear.h"

namespace tessera::tensor_parallel {
namespace {

// Returns the spec of a parameter that is sharded along a dim by the tensor-parallel ranks.
ParamSpec cut_spec(const char* name, std::vector<std::int64_t> shape, int dim,
                   std::vector<ParamSpec::Segment> segments = {}, std::int64_t pad_to = 1) {
  return {name, std::move(shape), {{tessera::Axis::tp, dim, std::move(segments), pad_to}}};
}

void check_divides(const std::string& label, const char* what, std::int64_t count, int tp) {
  if (count >= tp && count % tp == 0) return;
  throw UsageError(str(quote(label), " has ", count, " ", what, ", which is not a multiple of the ",
                       tp, " tensor-parallel ranks. Choose a tp that divides ", count,
                       ", or change the number to ", (count + tp - 1) / tp * tp, "."));
}

std::vector<ParamSpec::Segment> segments_of(const LinearOptions& options, int tp) {
  std::vector<ParamSpec::Segment> segments;
  std::int64_t sum = 0;
  for (const Outputs& each : options.outputs) {
    const std::int64_t groups = each.groups == 0 ? each.length : each.groups;
    if (!(each.shared && groups < tp)) {
      check_divides(options.label, each.groups == 0 ? "outputs" : "heads", groups, tp);
    } else if (tp % groups != 0) {
      throw UsageError(str(quote(options.label), " has ", groups, " shared heads for ", tp,
                           " tensor-parallel ranks. Choose a tp that divides ", groups,
                           " or is a multiple of it."));
    }
    segments.push_back({each.length, groups});
    sum += each.length;
  }
  if (options.pad_to != 0 && (options.pad_to < 0 || !segments.empty())) {
    throw UsageError(str(quote(options.label), ": pad_to is ", options.pad_to, " with ",
                         segments.size(),
                         " entries in `outputs`. pad_to must be at least 1 and cannot be combined "
                         "with `outputs`."));
  }
  if (segments.empty()) {
    if (options.pad_to == 0) check_divides(options.label, "outputs", options.out, tp);
  } else if (sum != options.out) {
    throw UsageError(str(quote(options.label), ": the lengths of `outputs` add up to ", sum,
                         ". They must add up to `out`, which is ", options.out, "."));
  }
  return segments;
}

at::Tensor local_param(const ParamSpec& spec, const Axis& axis, const nn::ParamOptions& options) {
  return nn::new_parameter(local_shape(spec, axis.axes(), axis.coordinate()), options);
}

void check_no_overlap(const LinearOptions& options, const Axis& axis) {
  if (options.adapters.empty() || !axis.overlap || axis.size() == 1) return;
  throw UsageError(str(quote(options.label),
                       " has adapters, whose products cannot overlap with collectives. Use tensor "
                       "parallelism without overlap (--overlap-tp)."));
}

// Returns whether the operations before this linear run fused with it.
bool fuses(const FusedInput& input, const at::Tensor& w) {
  return nn::fuses(input.x) && input.x.scalar_type() == w.scalar_type() &&
         input.norm.of_one_type() &&
         (!input.branch.defined() || input.branch.scalar_type() == w.scalar_type());
}

// Returns the input of the linear and, of a norm, the sum x + branch, as separate operations. Takes
// the input by value, so that what is no longer needed is freed before the product.
std::pair<at::Tensor, at::Tensor> separate(FusedInput in) {
  switch (in.kind) {
    case nn::Operand::Kind::plain: return {in.x, {}};
    case nn::Operand::Kind::gelu: return {nn::gelu(in.x, in.bias), {}};
    case nn::Operand::Kind::swiglu: return {nn::swiglu(in.x), {}};
    case nn::Operand::Kind::norm: break;
  }
  if (in.branch.defined()) return nn::add_norm(in.x, in.branch, in.norm);
  return {nn::norm(in.x, in.norm), in.x};
}

std::vector<ParamSpec> with_bias(const ParamSpec& weight, const ParamSpec& bias, bool has_bias) {
  return has_bias ? std::vector<ParamSpec>{weight, bias} : std::vector<ParamSpec>{weight};
}

}  // namespace

ColumnParallelLinearImpl::ColumnParallelLinearImpl(Axis axis, const LinearOptions& options)
    : axis_(std::move(axis)), label_(options.label) {
  const auto segments = segments_of(options, axis_.size());
  for (const ParamSpec::Segment& segment : segments) {
    shared_ = shared_ || segment.parts < axis_.size();
  }
  const std::int64_t pad_to = std::max<std::int64_t>(1, options.pad_to);
  weight_spec_ = cut_spec("weight", {options.out, options.in}, 0, segments, pad_to);
  bias_spec_ = cut_spec("bias", {options.out}, 0, segments, pad_to);
  weight = register_parameter("weight", local_param(weight_spec_, axis_, options.tensors));
  if (options.bias) {
    bias = register_parameter("bias", local_param(bias_spec_, axis_, options.tensors));
  }
  check_no_overlap(options, axis_);
  for (const AdapterOptions& each : options.adapters) {
    const std::int64_t all = each.part < 0 ? options.out : nth(options.outputs, each.part).length;
    auto cut = segments;
    std::int64_t from = 0;
    if (each.part >= 0) {
      cut = {nth(segments, each.part)};
      for (int part = 0; part < each.part; ++part) {
        const ParamSpec before =
            cut_spec("before", {nth(segments, part).length}, 0, {nth(segments, part)});
        from += local_shape(before, axis_.axes(), axis_.coordinate())[0];
      }
    }
    adapted_from_.push_back(from);
    adapters_.push_back(
        register_module(each.name, Adapter(axis_, ParamSpec{"A", {each.rank, options.in}},
                                           cut_spec("B", {all, each.rank}, 0, cut), each.scale,
                                           options.tensors, str(label_, ".", each.name))));
  }
}

std::pair<at::Tensor, at::Tensor> ColumnParallelLinearImpl::parameters_in_use() const {
  if (!shared_) return {weight, bias};
  std::vector<at::Tensor> params = {weight};
  if (bias.defined()) params.push_back(bias);
  const auto summed = sum_shared(axis_.group, params, specs(), label_);
  return {summed[0], bias.defined() ? summed[1] : at::Tensor()};
}

std::vector<AdapterUse> ColumnParallelLinearImpl::adapters() const {
  return adapters_in_use(axis_, adapters_, adapted_from_, label_);
}

std::pair<at::Tensor, at::Tensor> ColumnParallelLinearImpl::multiply(FusedInput input,
                                                                     const at::Tensor& w,
                                                                     const at::Tensor& b) const {
  if (fuses(input, w)) return fused_column_linear(axis_, input, {w, b, adapters()}, label_);
  const auto [x, sum] = separate(std::move(input));
  if (adapters_.empty()) return {column_parallel_linear(axis_, x, w, b, label_), sum};
  return {adapted_linear(copy_to_region(axis_, x, label_), w, b, adapters()), sum};
}

at::Tensor ColumnParallelLinearImpl::forward(const at::Tensor& x) {
  return forward_fused({.x = x}).first;
}

std::pair<at::Tensor, at::Tensor> ColumnParallelLinearImpl::forward_fused(FusedInput input,
                                                                          bool add_bias) {
  const auto [w, b] = parameters_in_use();
  return multiply(std::move(input), w, add_bias ? b : at::Tensor());
}

at::Tensor ColumnParallelLinearImpl::forward_gelu(const at::Tensor& x) {
  if (!bias.defined() || !nn::gelu_adds_bias(x)) return nn::gelu(forward(x));
  const auto [w, b] = parameters_in_use();
  return nn::gelu(multiply({.x = x}, w, at::Tensor()).first, b);
}

std::vector<ParamSpec> ColumnParallelLinearImpl::specs() const {
  return with_bias(weight_spec_, bias_spec_, bias.defined());
}

RowParallelLinearImpl::RowParallelLinearImpl(Axis axis, const LinearOptions& options)
    : axis_(std::move(axis)), label_(options.label) {
  if (!options.outputs.empty()) {
    throw UsageError(str("Row-parallel ", quote(label_),
                         " got `outputs`, but it is sharded along its inputs. Leave `outputs` "
                         "empty."));
  }
  check_divides(label_, "inputs", options.in, axis_.size());
  weight_spec_ = cut_spec("weight", {options.out, options.in}, 1);
  bias_spec_ = {"bias", {options.out}};
  weight = register_parameter("weight", local_param(weight_spec_, axis_, options.tensors));
  if (options.bias) {
    bias = register_parameter("bias", local_param(bias_spec_, axis_, options.tensors));
  }
  check_no_overlap(options, axis_);
  for (const AdapterOptions& each : options.adapters) {
    adapters_.push_back(
        register_module(each.name, Adapter(axis_, cut_spec("A", {each.rank, options.in}, 1),
                                           ParamSpec{"B", {options.out, each.rank}}, each.scale,
                                           options.tensors, str(label_, ".", each.name))));
  }
}

at::Tensor RowParallelLinearImpl::forward(const at::Tensor& x) { return forward_fused({.x = x}); }

at::Tensor RowParallelLinearImpl::forward_fused(FusedInput input, const at::Tensor& residual) {
  const auto uses =
      adapters_in_use(axis_, adapters_, std::vector<std::int64_t>(adapters_.size()), label_);
  if (fuses(input, weight)) {
    const bool adds = residual.defined() && axis_.size() == 1;
    const at::Tensor out = fused_row_linear(
        axis_, input, {weight, bias, uses, adds ? residual : at::Tensor()}, label_);
    return residual.defined() && !adds ? residual + out : out;
  }
  const at::Tensor x = separate(std::move(input)).first;
  const auto product = [&] {
    if (adapters_.empty()) return row_parallel_linear(axis_, x, weight, bias, label_);
    if (axis_.size() == 1) return adapted_linear(x, weight, bias, uses);
    const at::Tensor own = adapted_linear(x, weight, at::Tensor(), uses);
    return reduce_from_region(axis_, bias.defined() ? add_once(axis_.group, own, bias) : own,
                              label_);
  };
  return residual.defined() ? residual + product() : product();
}

std::vector<ParamSpec> RowParallelLinearImpl::specs() const {
  return with_bias(weight_spec_, bias_spec_, bias.defined());
}

VocabParallelEmbeddingImpl::VocabParallelEmbeddingImpl(Axis axis, const EmbeddingOptions& options)
    : axis_(std::move(axis)), label_(options.label) {
  spec_ = cut_spec("weight", {options.rows, options.width}, 0, {}, options.pad_to);
  weight = register_parameter("weight", local_param(spec_, axis_, options.tensors));
}

at::Tensor VocabParallelEmbeddingImpl::forward(const at::Tensor& ids, const at::Tensor& added) {
  const bool padded = weight.size(0) * axis_.size() > spec_.shape[0];
  const auto whole = [&] {
    const at::Tensor rows = at::embedding(weight, ids);
    return added.defined() ? rows + added.to(rows.scalar_type()) : rows;
  };
  if (axis_.size() == 1 && !padded) return whole();
  // An id outside the table, or in its padding, would silently give zeros. On a device the host
  // does not wait for the result: the check runs there and aborts the stream, as in torch's own
  // embedding.
  if (!ids.is_cpu() && !ids.is_meta()) {
    at::_assert_async(ids.ge(0).logical_and_(ids.lt(spec_.shape[0])).all(),
                      str(quote(label_), " got an id that is out of range. Ids must be 0 to ",
                          spec_.shape[0] - 1, "."));
  }
  if (ids.is_cpu() && ids.numel() > 0 &&
      (ids.min().item<std::int64_t>() < 0 || ids.max().item<std::int64_t>() >= spec_.shape[0])) {
    throw UsageError(str(quote(label_), " got ids from ", ids.min().item<std::int64_t>(), " to ",
                         ids.max().item<std::int64_t>(), ". Ids must be 0 to ", spec_.shape[0] - 1,
                         "."));
  }
  if (axis_.size() == 1) return whole();
  const std::int64_t own = weight.size(0), first = axis_.rank() * own;
  const at::Tensor others = (ids < first).logical_or_(ids >= first + own);
  at::Tensor rows = at::embedding(weight, (ids - first).masked_fill_(others, 0))
                        .masked_fill(others.unsqueeze(-1), 0);
  if (added.defined()) rows = add_once(axis_.group, rows, added);
  return reduce_from_region(axis_, rows, label_);
}

std::vector<ParamSpec> VocabParallelEmbeddingImpl::specs() const { return {spec_}; }

MeshDropoutImpl::MeshDropoutImpl(Axis axis, DropoutOptions options)
    : axis_(std::move(axis)), options_(std::move(options)) {
  if (const double rate = options_.rate.value_or(0); !(rate >= 0 && rate < 1)) {
    throw UsageError(str("MeshDropout ", quote(options_.label), ": rate ", rate,
                         " must be at least 0 and less than 1."));
  }
}

at::Tensor MeshDropoutImpl::forward(const at::Tensor& x) {
  if (!is_training()) return x;
  const std::shared_ptr<const nn::Pass> pass = nn::current_pass();
  const double rate = options_.rate.value_or(pass == nullptr ? 0 : pass->dropout);
  if (rate == 0) return x;
  if (pass == nullptr) {
    throw UsageError(str("MeshDropout ", quote(options_.label), " ran in training outside a step ",
                         "of a ParallelModel, which chooses its masks. Call eval(), or use ",
                         "torch::nn::Dropout there."));
  }
  if (x.dim() == 0 || x.numel() == 0) return x;
  const nn::Dropout mask{rate, pass->seed, stream_of(options_.label), pass->first_sample,
                         pass->part};
  const at::Tensor rows =
      x.dim() == 1 ? x.view({-1, 1, 1}) : x.reshape({x.size(0), -1, x.size(-1)});
  const std::int64_t own = rows.size(2), t = axis_.rank();
  const at::Tensor dropped = options_.sharded
                                 ? nn::dropout(rows, mask, {}, t * own, axis_.size() * own)
                                 : nn::dropout(rows, mask, rows_of(axis_, mask, rows.size(1)));
  return dropped.view(x.sizes());
}

}  // namespace tessera::tensor_parallel
