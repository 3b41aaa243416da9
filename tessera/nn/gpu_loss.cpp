// Head and loss on a GPU, one block of rows at a time.

#include <ATen/ops/_assert_async.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "tessera/core/text.h"
#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn::gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// [Note: loss by rows] The logits of all rows would be the largest tensor of a step. So rows are
// processed one block at a time: their logits are replaced by their gradient, which is immediately
// multiplied by the weight (the gradient of the rows) and by the rows (their contribution to the
// weight's gradient, accumulated in fp32). No product is computed twice. Backward multiplies by the
// incoming factor at the end.
constexpr std::int64_t kLogitsBytes = 256 << 20;

std::int64_t rows_at_a_time(const at::Tensor& h, const at::Tensor& w) {
  const std::int64_t fit = kLogitsBytes / (w.size(0) * static_cast<std::int64_t>(h.element_size()));
  return std::clamp<std::int64_t>(fit / 128 * 128, 128, std::max<std::int64_t>(128, h.size(0)));
}

struct LossFunction : torch::autograd::Function<LossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& hidden, const at::Tensor& w,
                            const at::Tensor& targets, std::int64_t classes) {
    const at::Tensor h = as_rows(hidden);
    const bool want_h = hidden.requires_grad(), want_w = w.requires_grad();
    at::Tensor dh, dw;
    if (want_h) dh = at::empty(h.sizes(), h.options());
    if (want_w) dw = at::empty(w.sizes(), w.options().dtype(at::kFloat));
    const at::Tensor losses = at::empty({h.size(0)}, h.options().dtype(at::kFloat));
    const at::Tensor bad = at::zeros({1}, h.options().dtype(at::kInt));
    const std::int64_t step = rows_at_a_time(h, w);
    const at::Tensor block = at::empty({std::min(step, h.size(0)), w.size(0)}, h.options());
    for (std::int64_t begin = 0; begin < h.size(0); begin += step) {
      const std::int64_t n = std::min(step, h.size(0) - begin);
      const at::Tensor rows = h.narrow(0, begin, n), logits = block.narrow(0, 0, n);
      multiply_into(logits, rows, false, w, true, false);
      kernels::cuda::CrossEntropy in;
      in.type = type_of(h);
      in.rows = count(n), in.cols = count(w.size(0)), in.classes = count(classes);
      in.targets = targets.const_data_ptr<std::int64_t>() + begin;
      kernels::cuda::cross_entropy(in, address(logits), losses.mutable_data_ptr<float>() + begin,
                                   bad.mutable_data_ptr<int>(), stream_of(h));
      if (want_h) multiply_into(dh.narrow(0, begin, n), logits, false, w, false, false);
      if (want_w) multiply_into(dw, logits, true, rows, false, begin > 0);
    }
    // The host does not wait for the result: a failed check aborts the stream, as torch's own does.
    at::_assert_async(bad.eq(0), str("A target of the loss is out of range. Targets must be 0 to ",
                                     classes - 1, ", or -1 to ignore a row."));
    ctx->save_for_backward({dh, dw, w});
    ctx->saved_data["sizes"] = hidden.sizes().vec();
    remember_deferral(ctx);
    return losses.sum(at::kDouble).to(at::kFloat);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("linear_cross_entropy");
    const tensor_list saved = ctx->get_saved_variables();
    const at::Tensor &dh = saved[0], &dw = saved[1], &w = saved[2], &factor = grads[0];
    at::Tensor dx, weight;
    if (dh.defined()) {
      dx = dh.mul(factor.to(dh.scalar_type())).view(ctx->saved_data["sizes"].toIntVector());
    }
    if (dw.defined()) {
      DeferredGradients* later = deferral_of(ctx);
      if (later != nullptr && is_deferrable(w)) {
        later->push(w, [dw, factor, type = w.scalar_type()] { return dw.mul(factor).to(type); });
      } else {
        const ParamGradient to(w);
        at::Tensor place = to.to();  // computed in fp32, rounded once
        to.add() ? place.add_(dw.mul(factor)) : at::mul_out(place, dw, factor);
        weight = to.result();
      }
    }
    return {dx, weight, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes) {
  return LossFunction::apply(hidden, weight, targets, classes);
}

}  // namespace tessera::nn::gpu
