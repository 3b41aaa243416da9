#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

void check_targets(const at::Tensor& targets, std::int64_t classes) {
  const auto* target = targets.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < targets.numel(); ++i) {
    if (target[i] < -1 || target[i] >= classes) {
      throw UsageError(str("Target ", i, " of the loss is ", target[i], ". Targets must be 0 to ",
                           classes - 1, ", or -1 to ignore a row."));
    }
  }
}

// Returns the sum of the losses. Replaces the logits by their gradient, which is zero beyond the
// classes.
at::Tensor losses_in_place(const at::Tensor& logits, const at::Tensor& targets,
                           std::int64_t classes) {
  const std::int64_t rows = logits.size(0), cols = logits.size(1);
  at::Tensor losses = at::empty({rows}, logits.options().dtype(at::kFloat));
  const auto* target = targets.const_data_ptr<std::int64_t>();
  auto* loss = losses.mutable_data_ptr<float>();
  const std::int64_t together = classes == cols ? rows : 1;  // contiguous rows per call
  parallel_for(0, rows, grain_of(classes), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; r += together) {
      kernels::cross_entropy_rows(row_out(logits, r), type_of(logits),
                                  count(std::min(together, end - r)), count(classes), target + r,
                                  loss + r);
    }
  });
  if (classes < cols) logits.narrow(1, classes, cols - classes).zero_();
  return losses.sum(at::kDouble).to(at::kFloat);
}

// Returns the weight's gradient. The incoming factor is applied to the smaller operand of the
// product.
at::Tensor logits_weight_gradient(const at::Tensor& dlogits, const at::Tensor& h,
                                  const at::Tensor& factor) {
  if (multiplies_in_fp32(h)) return to_bf16(at::mm(to_fp32(dlogits).t(), to_fp32(h) * factor));
  return at::mm(dlogits.t(), h * factor.to(h.scalar_type()));
}

struct LinearCrossEntropy : public torch::autograd::Function<LinearCrossEntropy> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden,
                            const at::Tensor& weight, const at::Tensor& targets,
                            std::int64_t classes) {
    const at::Tensor h = as_rows(hidden);
    // The logits are replaced by their gradient; if they are computed in fp32, it is too.
    const bool wide = multiplies_in_fp32(h);
    at::Tensor logits = wide ? gemm_nt(to_fp32(h), to_fp32(weight)) : gemm_nt(h, weight);
    const at::Tensor loss = losses_in_place(logits, targets, classes);
    if (wide) logits = to_bf16(logits);
    ctx->save_for_backward({h, weight, logits});
    ctx->saved_data["sizes"] = hidden.sizes().vec();
    remember_deferral(ctx);
    return loss;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("linear_cross_entropy");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &h = saved[0], &weight = saved[1], &dlogits = saved[2];
    const at::Tensor& factor = grads[0];
    const bool in_fp32 = multiplies_in_fp32(h);
    const at::Tensor d = in_fp32 ? to_fp32(dlogits) : dlogits;
    at::Tensor dh, dw;
    if (ctx->needs_input_grad(0)) {
      dh = in_fp32 ? to_bf16(at::mm(d, to_fp32(weight)).mul_(factor))
                   : at::mm(d, weight).mul_(factor.to(h.scalar_type()));
    }
    if (ctx->needs_input_grad(1)) {
      if (DeferredGradients* later = deferral_of(ctx); later != nullptr && is_deferrable(weight)) {
        later->push(weight, [dlogits, h = h.detach(), factor] {
          return logits_weight_gradient(dlogits, h, factor);
        });
      } else {
        dw = logits_weight_gradient(d, h, factor);
      }
    }
    if (dh.defined()) dh = dh.view(ctx->saved_data["sizes"].toIntVector());
    return {dh, dw, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes) {
  if (classes < 0) classes = weight.size(0);
  const at::Tensor flat = targets.reshape({-1}).contiguous();
  if (flat.scalar_type() != at::kLong || flat.numel() * hidden.size(-1) != hidden.numel()) {
    throw UsageError(str("The loss got ", flat.numel(), " targets of type ",
                         c10::toString(flat.scalar_type()), " for ",
                         hidden.numel() / std::max<std::int64_t>(1, hidden.size(-1)),
                         " rows. There must be one int64 target for each row."));
  }
  if (has_cpu_kernel(hidden) && hidden.scalar_type() == weight.scalar_type() &&
      hidden.numel() > 0) {
    check_targets(flat, classes);
    return LinearCrossEntropy::apply(hidden, weight, flat, classes);
  }
  if (gpu::takes(hidden) && hidden.scalar_type() == weight.scalar_type()) {
    return gpu::linear_cross_entropy(hidden, weight, flat, classes);
  }
  const at::Tensor logits = linear(hidden.reshape({-1, hidden.size(-1)}), weight, at::Tensor());
  return at::cross_entropy_loss(logits.to(at::kFloat).narrow(1, 0, classes), flat, {},
                                at::Reduction::Sum, -1);
}

}  // namespace tessera::nn
