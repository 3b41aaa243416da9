#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
#include "tessera/core/text.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Returns the type of the arithmetic: fp32, or fp64 if x is.
at::ScalarType computed_in(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

struct RmsNorm : public torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            double eps) {
    const at::Tensor wide = x.to(computed_in(x));
    const at::Tensor rstd = wide.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
    ctx->save_for_backward({x, w, rstd});
    return (wide * rstd).mul_(w).to(x.scalar_type());
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("rms_norm");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &rstd = saved[2];
    const at::Tensor unit = x.to(computed_in(x)) * rstd, dy = grads[0].to(computed_in(x));
    const at::Tensor dunit = dy * w;
    const at::Tensor along = (dunit * unit).mean(-1, /*keepdim=*/true);
    at::Tensor dw = (dy * unit).reshape({-1, x.size(-1)}).sum(0).to(w.scalar_type());
    return {(dunit - unit * along).mul_(rstd).to(x.scalar_type()), dw, at::Tensor()};
  }
};

struct SwiGlu : public torch::autograd::Function<SwiGlu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    const auto parts = x.chunk(2, -1);
    return at::silu(parts[0]).mul_(parts[1]);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("swiglu");
    const at::Tensor x = ctx->get_saved_variables()[0];
    const auto parts = x.chunk(2, -1);
    const at::Tensor gate = parts[0].to(computed_in(x)), dy = grads[0].to(computed_in(x));
    const at::Tensor s = gate.sigmoid();
    at::Tensor dx = at::empty(x.sizes(), x.options());
    const auto out = dx.chunk(2, -1);
    // In place: each of these is as large as the layer, at the point where backward needs the most
    // memory.
    out[1].copy_((dy * gate).mul_(s));
    // The derivative of g · s is s · (1 + g · (1 - s)).
    const at::Tensor slope = (1 - s).mul_(gate).add_(1);
    out[0].copy_((dy * parts[1]).mul_(s).mul_(slope));
    return {dx};
  }
};

// Rotates the first `heads` heads of each token by its position, or back.
at::Tensor apply_rotary(const at::Tensor& qkv, std::int64_t heads, std::int64_t dim,
                        const std::vector<double>& rates, double gain, const SequencePart& part,
                        bool back) {
  const std::int64_t half = dim / 2;
  const auto fp32 = qkv.options().dtype(at::kFloat);
  const at::Tensor rate = at::tensor(rates, at::kDouble).to(fp32);
  const at::Tensor angle = positions_of(part, qkv.size(1), fp32).unsqueeze(1) * rate;  // [T, d / 2]
  const at::Tensor cos = angle.cos().mul_(gain).unsqueeze(1);
  const at::Tensor sin = angle.sin().mul_(back ? -gain : gain).unsqueeze(1);
  at::Tensor out = qkv.contiguous().clone();
  const at::Tensor pairs =
      out.narrow(2, 0, heads * dim).unflatten(2, {heads, 2, half});  // [B, T, heads, 2, d / 2]
  const at::Tensor a = pairs.select(3, 0), b = pairs.select(3, 1);
  const at::Tensor first = a * cos - b * sin;
  b.copy_(b * cos + a * sin);
  a.copy_(first);
  return out;
}

struct Rotary : public torch::autograd::Function<Rotary> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, std::int64_t heads,
                            std::int64_t dim, const std::vector<double>& rates, double gain,
                            const SequencePart& part) {
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["rates"] = rates;
    ctx->saved_data["gain"] = gain;
    ctx->saved_data["part"] = part.index;
    ctx->saved_data["parts"] = part.parts;
    return apply_rotary(qkv, heads, dim, rates, gain, part, false);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const SequencePart part{static_cast<int>(ctx->saved_data["part"].toInt()),
                            static_cast<int>(ctx->saved_data["parts"].toInt())};
    return {apply_rotary(grads[0], ctx->saved_data["heads"].toInt(), ctx->saved_data["dim"].toInt(),
                         ctx->saved_data["rates"].toDoubleVector(),
                         ctx->saved_data["gain"].toDouble(), part, true),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps) {
  return gpu::takes(x) ? gpu::norm(x, w, {}, eps) : RmsNorm::apply(x, w, eps);
}

at::Tensor swiglu(const at::Tensor& x) {
  if (x.dim() < 1 || x.size(-1) % 2 != 0) {
    throw UsageError(str("swiglu: ", x.dim() < 1 ? 0 : x.size(-1),
                         " columns. The number must be even: gates, then as many values."));
  }
  return gpu::takes(x) ? gpu::swiglu(x) : SwiGlu::apply(x);
}

at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim, double base) {
  return rotary(std::move(qkv), heads, dim, rotary_rates(dim, base));
}

at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates, double gain, const SequencePart& part) {
  if (part.parts == 1) expect_whole_rows("rotary", "its argument `part`");
  if (qkv.dim() != 3 || dim % 2 != 0 || heads * dim > qkv.size(2) ||
      static_cast<std::int64_t>(rates.size()) != dim / 2) {
    throw UsageError(str("rotary: a tensor with ", qkv.dim(), " dims, the last of size ",
                         qkv.size(-1), ", for ", heads, " heads of width ", dim, " with ",
                         rates.size(),
                         " rates. The tensor must be [batch, tokens, at least heads · width], the "
                         "width even, with one rate for each pair of elements."));
  }
  if (qkv.size(1) % part.chunks() != 0) {
    throw UsageError(str("rotary: ", qkv.size(1),
                         " tokens on a rank that has two chunks of each "
                         "sequence. The number must be even."));
  }
  if (gpu::takes(qkv)) return gpu::rotary(std::move(qkv), heads, dim, rates, gain, part);
  return Rotary::apply(qkv, heads, dim, rates, gain, part);
}

}  // namespace tessera::nn
