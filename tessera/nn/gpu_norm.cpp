// Norms on a GPU without a product after them.

#include <torch/csrc/autograd/custom_function.h>

#include "tessera/nn/gpu.h"
#include "tessera/nn/operand.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn::gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// {norm(x + r), x + r}, or {norm(x)}.
struct NormFunction : torch::autograd::Function<NormFunction> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x,
                             const std::optional<at::Tensor>& r, const at::Tensor& w,
                             const std::optional<at::Tensor>& b, double eps) {
    const auto [in, value] = norm_operand(as_rows(x), r ? as_rows(*r) : at::Tensor(),
                                          {w, b.value_or(at::Tensor()), eps});
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    tensor_list out = {value.view(x.sizes())};
    if (r) out.push_back(in.x.view(x.sizes()));
    // The sum is saved as an output, so that autograd makes no reference cycle.
    ctx->save_for_backward({r ? out[1] : in.x, in.weight, in.bias, in.mean, in.rstd});
    return out;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("a norm");
    const bool residual = grads.size() == 2;
    const at::Tensor past = residual ? grads[1] : at::Tensor();
    if (!grads[0].defined()) return {past, past, at::Tensor(), at::Tensor(), at::Tensor()};
    const tensor_list saved = ctx->get_saved_variables();
    const Operand in{Operand::Kind::norm,
                     as_rows(saved[0]),
                     saved[1],
                     saved[2],
                     saved[3],
                     saved[4],
                     ctx->saved_data["eps"].toDouble()};
    const Operand::Gradients g =
        in.backward(as_rows(grads[0]), past.defined() ? as_rows(past) : past, /*overwrite=*/false);
    const at::Tensor dx = g.dx.view(grads[0].sizes());
    remember_statistics(dx, {g.sums, g.largest});
    return {dx, residual ? dx : at::Tensor(), g.weight, g.bias, at::Tensor()};
  }
};

}  // namespace

at::Tensor norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps) {
  return NormFunction::apply(x, std::nullopt, w, to_optional(b), eps)[0];
}

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& r,
                                           const at::Tensor& w, const at::Tensor& b, double eps) {
  const tensor_list out = NormFunction::apply(x, to_optional(r), w, to_optional(b), eps);
  return {out[0], out[1]};
}

}  // namespace tessera::nn::gpu
