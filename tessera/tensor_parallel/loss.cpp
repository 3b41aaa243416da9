#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/second_derivatives.h"
#include "tessera/tensor_parallel/layers.h"
#include "tessera/tensor_parallel/overlap.h"

namespace tessera::tensor_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Returns the sum of the losses of the rows with a target. Replaces this rank's fp32 logits [N, V /
// ranks] by their gradient. Columns beyond `vocab` count as logits of minus infinity.
at::Tensor losses_in_place(const comm::Group& group, const at::Tensor& logits,
                           const at::Tensor& targets, std::int64_t vocab,
                           const std::string& label) {
  const std::int64_t rows = logits.size(0), own = logits.size(1), first = group.rank() * own;
  const std::int64_t classes = std::clamp<std::int64_t>(vocab - first, 0, own);
  logits.narrow(1, classes, own - classes).fill_(-std::numeric_limits<float>::infinity());
  comm::Call most;
  most.op = comm::ReduceOp::max;
  most.label = label + " max";
  const at::Tensor max = logits.amax(1);
  group.all_reduce(max, most).wait();
  logits.sub_(max.unsqueeze(1));
  const at::Tensor is_own = (targets >= first).logical_and_(targets < first + own);
  const at::Tensor column = (targets - first).masked_fill_(is_own.logical_not(), 0).unsqueeze(1);
  const at::Tensor both = at::empty({2, rows}, logits.options());
  both[1].copy_(logits.gather(1, column).squeeze(1).masked_fill_(is_own.logical_not(), 0));
  logits.exp_();
  both[0].copy_(logits.sum(1));
  all_reduce_(group, both, label + " sum");
  const at::Tensor counts = (targets >= 0).to(at::kFloat);
  logits.mul_((counts / both[0]).unsqueeze(1));
  logits.scatter_add_(1, column, is_own.to(at::kFloat).neg_().unsqueeze(1));
  return ((both[0].log() - both[1]) * counts).sum(at::kDouble).to(at::kFloat);
}

// Exchange of the loss on a GPU, which sends the same as losses_in_place().
nn::gpu::VocabShard vocab_shard(const comm::Group& group, std::int64_t rows,
                                const std::string& label) {
  return {
      .first = group.rank() * rows,
      .max =
          [group, label](const at::Tensor& top) {
            comm::Call most;
            most.op = comm::ReduceOp::max;
            most.label = label + " max";
            group.all_reduce(top, most).wait();
          },
      .sum = [group, label](const at::Tensor& both) { all_reduce_(group, both, label + " sum"); }};
}

struct Head : torch::CustomClassHolder {
  Head(Axis a, std::int64_t v, std::string l, double c)
      : axis(std::move(a)), vocab(v), label(std::move(l)), cap(c) {}
  Axis axis;
  std::int64_t vocab;
  std::string label;
  double cap;
};

// `hidden` is already inside the region, unless it overlaps.
struct VocabCrossEntropy : torch::autograd::Function<VocabCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const c10::intrusive_ptr<Head>& head,
                            const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets) {
    const Axis& axis = head->axis;
    const bool overlap = overlaps(axis, hidden, weight);
    Gathered gathered;
    if (overlap) {
      gathered = gather_matmul(axis, hidden, weight, {}, head->label, /*unrounded=*/true);
    } else {
      gathered.x = matrix(hidden);
      const bool wide = nn::multiplies_in_fp32(gathered.x);
      gathered.product = wide ? nn::gemm_nt(nn::to_fp32(gathered.x), nn::to_fp32(weight))
                              : nn::gemm_nt(gathered.x, weight);
    }
    at::Tensor logits = std::exchange(gathered.product, {}).to(at::kFloat);
    at::Tensor slope;  // of the cap
    if (head->cap > 0) {
      logits.div_(head->cap).tanh_();
      slope = logits.square().neg_().add_(1);
      logits.mul_(head->cap);
    }
    const at::Tensor loss = losses_in_place(axis.group, logits, targets, head->vocab, head->label);
    if (slope.defined()) logits.mul_(slope);
    ctx->save_for_backward({gathered.x, weight, logits.to(gathered.x.scalar_type())});
    std::vector<std::int64_t> sizes = hidden.sizes().vec();
    if (overlap && axis.sequence) sizes[sizes.size() - 2] *= axis.size();
    ctx->saved_data["sizes"] = sizes;
    ctx->saved_data["head"] = c10::IValue::make_capsule(head);
    ctx->saved_data["overlap"] = overlap;
    nn::remember_deferral(ctx);
    return loss;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    nn::refuse_second_derivatives("vocab_parallel_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &h = saved[0], &w = saved[1], &dy = saved[2];
    // The incoming factor is applied to the smaller operand of each product.
    const at::Tensor factor = grads[0].to(h.scalar_type());
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    nn::ProductGradients g;
    if (ctx->saved_data["overlap"].toBool()) {
      const auto* head = static_cast<Head*>(ctx->saved_data["head"].toCapsule().get());
      Pending dx;
      if (ctx->needs_input_grad(0)) {
        const at::Tensor whole = nn::product_gradients(dy, h, w, true, false).dx;
        dx = start_input_gradient(head->axis, whole.mul_(factor).view(sizes), head->label);
      }
      g.dw = nn::weight_gradient(ctx, dy, h * factor, w);
      g.dx = dx.wait();
    } else {
      g = nn::product_gradients(ctx, dy, h * factor, w);
      if (g.dx.defined()) g.dx = g.dx.mul_(factor).view(sizes);
    }
    return {at::Tensor(), g.dx, g.dw, at::Tensor()};
  }
};

}  // namespace

at::Tensor vocab_parallel_cross_entropy(const Axis& axis, const at::Tensor& hidden,
                                        const at::Tensor& weight, const at::Tensor& targets,
                                        const std::string& label, std::int64_t vocab, double cap) {
  const std::int64_t classes = vocab < 0 ? weight.size(0) * axis.size() : vocab;
  if (classes > weight.size(0) * axis.size()) {
    throw UsageError(str("The loss got ", weight.size(0), " rows of weights on each of ",
                         axis.size(), " ranks, which is less than the vocabulary of ", classes,
                         "."));
  }
  if (axis.size() == 1 && cap == 0)
    return nn::linear_cross_entropy(hidden, weight, targets, classes);
  // On a GPU the gathered sequence would be kept for less than it hides.
  const bool overlap = overlaps(axis, hidden, weight) && !nn::gpu::takes(hidden);
  const at::Tensor h = overlap ? hidden : copy_to_region(axis, hidden, label);
  const at::Tensor flat = targets.reshape({-1}).contiguous();
  const std::int64_t rows = h.numel() / std::max<std::int64_t>(1, h.size(-1)) *
                            (overlap && axis.sequence ? axis.size() : 1);
  if (flat.scalar_type() != at::kLong || flat.numel() != rows) {
    throw UsageError(str("The loss got ", flat.numel(), " targets of type ",
                         c10::toString(flat.scalar_type()), " for ", rows,
                         " rows. There must be one int64 target for each row."));
  }
  if (flat.is_cpu() && rows > 0 &&
      (flat.min().item<std::int64_t>() < -1 || flat.max().item<std::int64_t>() >= classes)) {
    throw UsageError(str("The loss got targets from ", flat.min().item<std::int64_t>(), " to ",
                         flat.max().item<std::int64_t>(), ". Targets must be 0 to ", classes - 1,
                         ", or -1 to ignore a row."));
  }
  if (nn::gpu::takes(h) && h.scalar_type() == weight.scalar_type() && cap == 0 && !overlap) {
    return nn::gpu::linear_cross_entropy(h, weight, flat, classes,
                                         vocab_shard(axis.group, weight.size(0), label));
  }
  Axis used = axis;
  used.overlap = overlap;
  return VocabCrossEntropy::apply(c10::make_intrusive<Head>(used, classes, label, cap), h, weight,
                                  flat);
}

}  // namespace tessera::tensor_parallel
