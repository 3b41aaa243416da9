#include "tessera/zero/sync_batch_norm.h"

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <numeric>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::zero {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct NormGroup : torch::CustomClassHolder {
  explicit NormGroup(comm::Group g) : group(std::move(g)) {}
  comm::Group group;
};

// Type of the computation: fp64 for fp64 inputs, otherwise fp32.
at::ScalarType wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Reshapes a tensor [C] so that it broadcasts over x [N, C, ...].
at::Tensor per_channel(const at::Tensor& of_channels, const at::Tensor& x) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(x.dim()), 1);
  sizes[1] = -1;
  return of_channels.view(sizes);
}

std::vector<std::int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<std::int64_t> dims = {0};
  for (std::int64_t d = 2; d < x.dim(); ++d) dims.push_back(d);
  return dims;
}

comm::Call norm_call(const char* label) {
  comm::Call call;
  call.label = label;
  return call;
}

struct Statistics {
  at::Tensor mean, variance;  // [C], fp64; biased variance
  double count = 0;           // values per channel
};

// Combines the mean and the squared deviations of each rank in rank order, so that all ranks get
// the same bits.
Statistics statistics(const at::Tensor& x, const comm::Group& group) {
  const std::int64_t channels = x.size(1);
  const std::int64_t mine = channels == 0 ? 0 : x.numel() / channels;
  const auto fp64 = at::device(x.device()).dtype(at::kDouble);
  at::Tensor mean = at::zeros({channels}, fp64), squares = at::zeros({channels}, fp64);
  if (mine > 0) {
    const at::Tensor values = x.to(wide(x));
    mean = values.mean(all_but_channels(x), false, at::kDouble);
    squares = (values - per_channel(mean.to(wide(x)), x))
                  .square()
                  .sum(all_but_channels(x), false, at::kDouble);
  }
  const at::Tensor own = at::cat({mean, squares, at::full({1}, static_cast<double>(mine), fp64)});
  at::Tensor all = own;
  if (group.size() > 1) {
    all = at::empty({group.size() * own.numel()}, fp64);
    group.all_gather(all, own, norm_call("batch norm statistics")).wait();
  }
  all = all.view({group.size(), 2 * channels + 1});
  const at::Tensor means = all.narrow(1, 0, channels), counts = all.narrow(1, 2 * channels, 1);
  Statistics result;
  result.count = counts.sum().item<double>();
  result.mean = (means * counts).sum(0) / result.count;
  result.variance = (all.narrow(1, channels, channels).sum(0) +
                     ((means - result.mean).square() * counts).sum(0)) /
                    result.count;
  return result;
}

struct Normalize : torch::autograd::Function<Normalize> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, const Statistics& of, double eps,
                            const comm::Group& group) {
    const at::Tensor mean = of.mean.to(wide(x));
    const at::Tensor inverse = (of.variance + eps).rsqrt().to(wide(x));
    at::Tensor y = (x.to(wide(x)) - per_channel(mean, x)) * per_channel(inverse, x);
    if (weight.defined()) {
      y = y * per_channel(weight.to(wide(x)), x) + per_channel(bias.to(wide(x)), x);
    }
    ctx->save_for_backward({x, weight, mean, inverse});
    ctx->saved_data["count"] = of.count;
    ctx->saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<NormGroup>(group));
    return y.to(x.scalar_type());
  }

  static tensor_list backward(AutogradContext* ctx, const tensor_list& grads) {
    nn::refuse_second_derivatives("SyncBatchNorm");
    const tensor_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const auto& group = static_cast<NormGroup*>(ctx->saved_data["group"].toCapsule().get())->group;
    const double count = ctx->saved_data["count"].toDouble();
    const at::Tensor dy = grads[0].to(wide(x));
    const at::Tensor normal = (x.to(wide(x)) - per_channel(mean, x)) * per_channel(inverse, x);
    const at::Tensor own = at::cat({dy.sum(all_but_channels(x), false, at::kDouble),
                                    (dy * normal).sum(all_but_channels(x), false, at::kDouble)});
    const std::int64_t channels = x.size(1);
    tensor_list result(6);
    if (weight.defined()) {
      result[1] = own.narrow(0, channels, channels).to(weight.scalar_type());
      result[2] = own.narrow(0, 0, channels).to(weight.scalar_type());
    }
    at::Tensor sums = own;
    if (group.size() > 1) {
      sums = own.clone();
      group.all_reduce(sums, norm_call("batch norm backward")).wait();
    }
    sums = (sums / count).to(wide(x));
    at::Tensor dx = dy - per_channel(sums.narrow(0, 0, channels), x) -
                    normal * per_channel(sums.narrow(0, channels, channels), x);
    at::Tensor scale = inverse;
    if (weight.defined()) scale = scale * weight.to(wide(x));
    result[0] = (dx * per_channel(scale, x)).to(x.scalar_type());
    return result;
  }
};

template <typename Impl>
bool take_over(const torch::nn::Module& from, const comm::Group& group, SyncBatchNorm& to) {
  const auto* norm = dynamic_cast<const Impl*>(&from);
  if (norm == nullptr) return false;
  to = SyncBatchNorm(norm->options, group);
  to->adopt(norm->weight, norm->bias, norm->running_mean, norm->running_var,
            norm->num_batches_tracked);
  to->train(norm->is_training());
  return true;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

struct NormPlace {
  torch::nn::SequentialImpl* parent = nullptr;
  std::string key, name;
};

void find_norms(torch::nn::Module& module, const std::string& prefix, std::vector<NormPlace>& all) {
  auto* const sequential = dynamic_cast<torch::nn::SequentialImpl*>(&module);
  for (const auto& child : module.named_children()) {
    const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
    if (!is_batch_norm(*child.value())) {
      find_norms(*child.value(), name, all);
      continue;
    }
    if (sequential == nullptr) {
      throw UsageError(str("convert_batch_norms: ", quote(name),
                           " is a member of a module and cannot be replaced. Put it into a "
                           "Sequential, or declare the member as tessera::SyncBatchNorm"));
    }
    all.push_back({sequential, child.key(), name});
  }
}

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(std::int64_t features, comm::Group group)
    : SyncBatchNormImpl(torch::nn::BatchNormOptions(features), std::move(group)) {}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& how, comm::Group group)
    : options(how), group_(std::move(group)) {
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::reset() {
  const std::int64_t features = options.num_features();
  const bool affine = options.affine(), tracks = options.track_running_stats();
  weight = register_parameter("weight", affine ? at::ones({features}) : at::Tensor(), affine);
  bias = register_parameter("bias", affine ? at::zeros({features}) : at::Tensor(), affine);
  running_mean = register_buffer("running_mean", tracks ? at::zeros({features}) : at::Tensor());
  running_var = register_buffer("running_var", tracks ? at::ones({features}) : at::Tensor());
  num_batches_tracked =
      register_buffer("num_batches_tracked", tracks ? at::zeros({}, at::kLong) : at::Tensor());
}

void SyncBatchNormImpl::adopt(const at::Tensor& w, const at::Tensor& b, const at::Tensor& mean,
                              const at::Tensor& variance, const at::Tensor& batches) {
  weight = parameters_["weight"] = w;
  bias = parameters_["bias"] = b;
  if (!mean.defined()) return;
  running_mean.set_data(mean);
  running_var.set_data(variance);
  num_batches_tracked.set_data(batches);
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "tessera::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", ranks=" << group_.size() << ")";
}

void SyncBatchNormImpl::track(const at::Tensor& mean, const at::Tensor& variance, double count) {
  const at::NoGradGuard no_grad;
  num_batches_tracked += 1;
  const double share =
      options.momentum() ? *options.momentum() : 1 / num_batches_tracked.item<double>();
  running_mean.mul_(1 - share).add_(mean.to(running_mean.scalar_type()), share);
  // Unbiased, as in torch.
  running_var.mul_(1 - share).add_((variance * (count / (count - 1))).to(running_var.scalar_type()),
                                   share);
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& x) {
  if (x.dim() < 2 || x.size(1) != options.num_features() || !at::isFloatingType(x.scalar_type())) {
    throw UsageError(tessera::str("SyncBatchNorm: got ", c10::toString(x.scalar_type()), " ",
                                  x.sizes(), ", must be floating-point numbers of shape [N, ",
                                  options.num_features(), ", ...]"));
  }
  if (!is_training()) {
    const at::Tensor y =
        at::batch_norm(x.to(wide(x)), weight.defined() ? weight.to(wide(x)) : weight,
                       bias.defined() ? bias.to(wide(x)) : bias,
                       running_mean.defined() ? running_mean.to(wide(x)) : running_mean,
                       running_var.defined() ? running_var.to(wide(x)) : running_var,
                       /*training=*/!running_mean.defined(), 0, options.eps(), false);
    return y.to(x.scalar_type());
  }
  Statistics of;
  {
    const at::NoGradGuard no_grad;
    of = statistics(x, group_);
  }
  if (of.count < 2) {
    throw UsageError(str("SyncBatchNorm: got ", of.count, " values per channel over ",
                         group_.size(), " ranks in training, must be at least 2"));
  }
  // The first run of a recomputed segment has already updated the statistics.
  if (running_mean.defined() && !nn::is_recomputing()) track(of.mean, of.variance, of.count);
  // Autograd requires defined tensors.
  const auto or_all = [&](const at::Tensor& param, double value) {
    return param.defined() ? param : at::full({x.size(1)}, value, x.options().dtype(wide(x)));
  };
  return Normalize::apply(x, or_all(weight, 1), or_all(bias, 0), of, options.eps(), group_);
}

SyncBatchNorm synchronized(const torch::nn::Module& batch_norm, const comm::Group& group) {
  SyncBatchNorm norm{nullptr};
  if (take_over<torch::nn::BatchNorm1dImpl>(batch_norm, group, norm) ||
      take_over<torch::nn::BatchNorm2dImpl>(batch_norm, group, norm) ||
      take_over<torch::nn::BatchNorm3dImpl>(batch_norm, group, norm)) {
    return norm;
  }
  throw UsageError(str("synchronized: got a ", batch_norm.name(),
                       ", must be a BatchNorm1d, BatchNorm2d or BatchNorm3d of torch::nn"));
}

std::vector<std::string> convert_batch_norms(torch::nn::Module& model, const comm::Group& group) {
  std::vector<NormPlace> places;
  find_norms(model, "", places);
  std::vector<std::string> names;
  if (places.empty()) return names;
  std::vector<int> ranks(static_cast<std::size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const comm::Group own = group.size() > 1 ? group.subset(ranks, "batch norm") : group;
  for (const NormPlace& place : places) {
    const auto old = place.parent->named_children()[place.key];
    const SyncBatchNorm norm = synchronized(*old, own);
    for (torch::nn::AnyModule& slot : *place.parent) {
      if (slot.ptr() == old) slot = torch::nn::AnyModule(norm);
    }
    place.parent->replace_module(place.key, norm.ptr());
    names.push_back(place.name);
  }
  return names;
}

}  // namespace tessera::zero
