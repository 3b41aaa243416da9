// Norms on a GPU, alone and before a linear layer.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn::gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// State that the backward of a norm needs: s = x (+ residual) as rows, and its statistics.
struct Kept {
  at::Tensor s, weight, bias, mean, rstd;  // no bias: RMSNorm, which has no mean either
  double eps = 0;

  kernels::cuda::Norm kernel() const {
    kernels::cuda::Norm in;
    in.type = type_of(s), in.weight_type = type_of(weight);
    in.centered = bias.defined();
    in.rows = count(s.size(0)), in.cols = count(s.size(1));
    in.x = address(s), in.weight = address(weight), in.bias = address(bias);
    in.eps = static_cast<float>(eps);
    return in;
  }
  float* mean_data() const { return mean.defined() ? mean.mutable_data_ptr<float>() : nullptr; }
  float* rstd_data() const { return rstd.mutable_data_ptr<float>(); }

  at::Tensor recompute_output() const {
    at::Tensor y = at::empty_like(s);
    kernels::cuda::norm_recompute(kernel(), mean_data(), rstd_data(), address(y), stream_of(s));
    return y;
  }
};

struct Normed {
  at::Tensor y;  // as rows
  Kept kept;
};

// `r` may be undefined; both as rows.
Normed run(const at::Tensor& x, const at::Tensor& r, const at::Tensor& w, const at::Tensor& b,
           double eps) {
  const auto fp32 = x.options().dtype(at::kFloat);
  Normed out{at::empty_like(x), {x, w.contiguous(), b, {}, at::empty({x.size(0)}, fp32), eps}};
  if (b.defined()) {
    out.kept.bias = b.to(w.scalar_type()).contiguous();
    out.kept.mean = at::empty({x.size(0)}, fp32);
  }
  kernels::cuda::Norm in = out.kept.kernel();
  in.residual = address(r);
  if (r.defined()) out.kept.s = at::empty_like(x);
  kernels::cuda::norm_forward(in, address(out.y), r.defined() ? address(out.kept.s) : nullptr,
                              out.kept.mean_data(), out.kept.rstd_data(), stream_of(x));
  return out;
}

void keep(AutogradContext* ctx, const Kept& kept, tensor_list more = {}) {
  tensor_list all = {kept.s, kept.weight, kept.bias, kept.mean, kept.rstd};
  all.insert(all.end(), more.begin(), more.end());
  ctx->save_for_backward(std::move(all));
  ctx->saved_data["eps"] = kept.eps;
}

Kept kept_of(AutogradContext* ctx, const tensor_list& saved) {
  return {as_rows(saved[0]), saved[1], saved[2],
          saved[3],          saved[4], ctx->saved_data["eps"].toDouble()};
}

struct NormGradients {
  at::Tensor dx, dw, db;
  at::Tensor sums;  // sums of dx over the rows; undefined if not needed

  at::Tensor dx_as(at::IntArrayRef sizes) const {
    at::Tensor result = dx.view(sizes);
    remember_sums(result, sums);
    return result;
  }
};

// All matrices are rows. dx may be dy. dsum may be undefined. If `y` is defined, the output is
// recomputed into it.
NormGradients run_backward(const Kept& kept, const at::Tensor& dy, const at::Tensor& dsum,
                           const at::Tensor& dx, const at::Tensor& y) {
  const ParamGradient dw(kept.weight), db(kept.bias);
  const at::Tensor scratch = column_scratch(dy, dy.size(0), 3 * dy.size(1));
  // A model with biases in its norms also has them in the linears that receive dx.
  at::Tensor sums;
  if (kept.bias.defined()) sums = at::empty({dy.size(1)}, dy.options().dtype(at::kFloat));
  kernels::cuda::norm_backward(kept.kernel(), kept.mean_data(), kept.rstd_data(), address(dy),
                               address(dsum), address(dx), address(y), dw.sink(), db.sink(),
                               static_cast<float*>(address(sums)),
                               scratch.mutable_data_ptr<float>(), stream_of(dy));
  return {dx, dw.result(), db.result(), sums};
}

// {norm(x + r), x + r}, or {norm(x)}.
struct NormFunction : torch::autograd::Function<NormFunction> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x,
                             const std::optional<at::Tensor>& r, const at::Tensor& w,
                             const std::optional<at::Tensor>& b, double eps) {
    const Normed out =
        run(as_rows(x), r ? as_rows(*r) : at::Tensor(), w, b.value_or(at::Tensor()), eps);
    ctx->set_materialize_grads(false);
    at::Tensor y = out.y.view(x.sizes());
    if (!r) {
      keep(ctx, out.kept);
      return {y};
    }
    Kept kept = out.kept;
    const at::Tensor sum = kept.s.view(x.sizes());
    kept.s = sum;  // saved as an output, so that autograd makes no reference cycle
    keep(ctx, kept);
    return {y, sum};
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("a norm");
    const bool residual = grads.size() == 2;
    const at::Tensor past = residual ? grads[1] : at::Tensor();
    NormGradients g;
    if (grads[0].defined()) {
      const Kept kept = kept_of(ctx, ctx->get_saved_variables());
      g = run_backward(kept, as_rows(grads[0]), past.defined() ? as_rows(past) : past,
                       at::empty_like(kept.s), {});
      g.dx = g.dx_as(grads[0].sizes());
    } else {
      g.dx = past;
    }
    return {g.dx, residual ? g.dx : at::Tensor(), g.dw, g.db, at::Tensor()};
  }
};

// {norm(x) · wᵀ + b, x}.
struct NormLinear : torch::autograd::Function<NormLinear> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& norm_w,
                             const std::optional<at::Tensor>& norm_b, double eps,
                             const at::Tensor& w, const std::optional<at::Tensor>& b) {
    const at::Tensor rows = as_rows(x);
    const Normed out = run(rows, {}, norm_w, norm_b.value_or(at::Tensor()), eps);
    keep(ctx, out.kept, {w, b.value_or(at::Tensor())});
    ctx->set_materialize_grads(false);
    remember_deferral(ctx);
    return {product(out.y, w, b.value_or(at::Tensor()), {}, with_last(x, w.size(0))),
            x.variable_data()};
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("norm_linear");
    const at::Tensor past = grads[1];
    if (!grads[0].defined()) {
      return {past, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
    }
    const tensor_list saved = ctx->get_saved_variables();
    const Kept kept = kept_of(ctx, saved);
    const at::Tensor &w = saved[5], &b = saved[6];
    const at::Tensor dout = as_rows(grads[0]);
    DeferredGradients* later = deferral_of(ctx);
    const bool defer = later != nullptr && is_deferrable(w);
    at::Tensor y;
    if (!defer && w.requires_grad()) y = at::empty_like(kept.s);
    const at::Tensor dy = input_gradient(dout, w);  // run_backward() overwrites it with dx
    const NormGradients g = run_backward(kept, dy, past.defined() ? as_rows(past) : past, dy, y);
    if (defer) {
      later->push(w, [dout, kept, w] {
        at::Tensor dw = at::empty(w.sizes(), dout.options());
        multiply_into(dw, dout, true, kept.recompute_output(), false, false);
        return dw;
      });
    }
    const ParamGradient dw(defer ? at::Tensor() : w), db(b);
    weight_gradient(dout, y, dw);
    bias_gradient(grads[0], db);
    return {g.dx_as(with_last(grads[0], kept.s.size(1))),
            g.dw,
            g.db,
            at::Tensor(),
            dw.result(),
            db.result()};
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

std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, const at::Tensor& norm_w,
                                              const at::Tensor& norm_b, double eps,
                                              const at::Tensor& w, const at::Tensor& b) {
  const tensor_list out = NormLinear::apply(x, norm_w, to_optional(norm_b), eps, w, to_optional(b));
  return {out[0], out[1]};
}

}  // namespace tessera::nn::gpu
