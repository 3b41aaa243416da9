#include "tessera/experts/products.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mv.h>

#include "tessera/nn/gpu.h"
#include "tessera/nn/matmul.h"

namespace tessera::experts {
namespace {

// Writes a · wᵀ + bias.
void multiply_rows(at::Tensor out, const at::Tensor& a, const at::Tensor& w,
                   const at::Tensor& bias) {
  if (nn::beats_aten(a)) {
    nn::GemmByRows product(a.size(0), w, bias);
    product.multiply(0, a);
    out.copy_(product.unrounded());
  } else if (bias.defined()) {
    at::addmm_out(out, bias.to(a.scalar_type()), a, w.t());
  } else {
    at::mm_out(out, a, w.t());
  }
}

// Returns the gradient of a matrix, dyᵀ · x, in its place if it has one.
at::Tensor matrix_gradient(const at::Tensor& param, const at::Tensor& dy, const at::Tensor& x) {
  const nn::gpu::ParamGradient gradient(param);
  if (!gradient) return {};
  at::Tensor to = gradient.to();
  if (nn::multiplies_in_fp32(dy) || to.scalar_type() != dy.scalar_type()) {
    const at::Tensor dw = nn::product_gradients(dy, x, param, false, true).dw;
    gradient.add() ? to.add_(dw) : to.copy_(dw);
  } else if (gradient.add()) {
    to.addmm_(dy.t(), x);
  } else {
    at::mm_out(to, dy.t(), x);
  }
  return gradient.result();
}

// Returns the gradient of a bias in its place if it has one.
at::Tensor bias_gradient(const at::Tensor& param, const at::Tensor& sum) {
  const nn::gpu::ParamGradient gradient(param);
  if (!gradient) return {};
  at::Tensor to = gradient.to();
  gradient.add() ? to.add_(sum) : to.copy_(sum);
  return gradient.result();
}

// Calls f(expert, first row, rows) for the experts with rows.
template <typename F>
void each_expert(const SortedRows& rows, F&& f) {
  const auto* counts = rows.counts.const_data_ptr<std::int64_t>();
  std::int64_t first = 0;
  for (std::int64_t e = 0; e < rows.counts.numel(); ++e) {
    if (counts[e] > 0) f(static_cast<std::size_t>(e), first, counts[e]);
    first += counts[e];
  }
}

}  // namespace

ExpertOutputs expert_outputs(const SortedRows& rows, const std::vector<ExpertParams>& experts,
                             const ExpertKind& kind) {
  if (!rows.x.is_cpu()) return grouped_outputs(rows, experts, kind);
  const std::int64_t count = rows.source.numel(), hidden = rows.x.size(1);
  ExpertOutputs result;
  result.h = at::empty({count, experts.empty() ? 0 : experts[0].fc.size(0)}, rows.x.options());
  result.out = at::empty({count, hidden}, rows.x.options());
  each_expert(rows, [&](std::size_t e, std::int64_t first, std::int64_t n) {
    const ExpertParams& expert = experts[e];
    const at::Tensor h = result.h.narrow(0, first, n), out = result.out.narrow(0, first, n);
    const at::Tensor weights = rows.weights.narrow(0, first, n);
    const at::Tensor x = at::index_select(rows.x, 0, rows.source.narrow(0, first, n));
    multiply_rows(h, x, expert.fc, expert.fc_bias);
    multiply_rows(out, activate(h, weights, kind.activation), expert.proj2, {});
    if (expert.proj2_bias.defined() && kind.adds_bias) {
      at::Tensor(out).add_(weights.unsqueeze(1) * expert.proj2_bias);
    }
  });
  return result;
}

ExpertGradients expert_gradients(const at::Tensor& dy, const at::Tensor& h, const SortedRows& rows,
                                 const std::vector<ExpertParams>& experts, const ExpertKind& kind) {
  if (!rows.x.is_cpu()) return grouped_gradients(dy, h, rows, experts, kind);
  const std::int64_t count = rows.source.numel();
  ExpertGradients result;
  result.dx = at::empty({count, rows.x.size(1)}, rows.x.options());
  result.dweights = at::empty({count}, rows.weights.options());
  result.params.resize(4 * experts.size());
  each_expert(rows, [&](std::size_t e, std::int64_t first, std::int64_t n) {
    const ExpertParams& expert = experts[e];
    at::Tensor* const grads = &result.params[4 * e];
    const at::Tensor source = rows.source.narrow(0, first, n);
    const at::Tensor weights = rows.weights.narrow(0, first, n);
    at::Tensor dweights = result.dweights.narrow(0, first, n);
    at::Tensor dh;
    {
      const at::Tensor d = at::index_select(dy, 0, source);
      const at::Tensor da = nn::product_gradients(d, {}, expert.proj2, true, false).dx;
      const ActivationGradients activation =
          activate_backward(h.narrow(0, first, n), weights, da, kind.activation);
      dh = activation.dh;
      dweights.copy_(activation.dweights);
      grads[2] = matrix_gradient(expert.proj2, d, activation.value);
      if (expert.proj2_bias.defined()) {
        const at::Tensor wide = d.to(weights.scalar_type());
        grads[3] = bias_gradient(expert.proj2_bias, at::mv(wide.t(), weights));
        if (kind.adds_bias) {
          dweights.add_(at::mv(wide, expert.proj2_bias.to(weights.scalar_type())));
        }
      }
    }
    const at::Tensor x = at::index_select(rows.x, 0, source);
    grads[0] = matrix_gradient(expert.fc, dh, x);
    if (expert.fc_bias.defined()) grads[1] = bias_gradient(expert.fc_bias, dh.sum(0));
    at::Tensor dx = result.dx.narrow(0, first, n);
    if (nn::multiplies_in_fp32(dh)) {
      dx.copy_(nn::product_gradients(dh, {}, expert.fc, true, false).dx);
    } else {
      at::mm_out(dx, dh, expert.fc);
    }
  });
  return result;
}

}  // namespace tessera::experts
