#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/layers.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct Forward {
  at::Tensor y, sum, mean, rstd;
};

Forward forward_rows(const at::Tensor& x, const at::Tensor& r, const at::Tensor& w,
                     const at::Tensor& b, double eps) {
  const std::int64_t rows = x.size(0), cols = x.size(1);
  const auto fp32 = x.options().dtype(at::kFloat);
  Forward f{.y = at::empty_like(x),
            .sum = r.defined() ? at::empty_like(x) : x,
            .mean = at::empty({rows}, fp32),
            .rstd = at::empty({rows}, fp32)};
  const at::Tensor weight = w.to(at::kFloat).contiguous(), bias = b.to(at::kFloat).contiguous();
  auto* mean = f.mean.mutable_data_ptr<float>();
  auto* rstd = f.rstd.mutable_data_ptr<float>();
  for_row_parts(rows, cols, [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    const kernels::LayerNorm in{.type = type_of(x),
                                .rows = count(end - begin),
                                .cols = count(cols),
                                .x = row(x, begin),
                                .residual = r.defined() ? row(r, begin) : nullptr,
                                .weight = weight.const_data_ptr<float>(),
                                .bias = bias.const_data_ptr<float>(),
                                .eps = static_cast<float>(eps)};
    kernels::layer_norm_forward(in, row_out(f.y, begin),
                                r.defined() ? row_out(f.sum, begin) : nullptr, mean + begin,
                                rstd + begin);
  });
  return f;
}

struct Backward {
  at::Tensor dx, dw, db;
};

// `dsum` may be undefined. `saved` is {sum, weight, mean, rstd}.
Backward backward_rows(const tensor_list& saved, const at::Tensor& dy, const at::Tensor& dsum) {
  const at::Tensor &s = saved[0], &w = saved[1];
  const std::int64_t rows = s.size(0), cols = s.size(1);
  const at::Tensor weight = w.to(at::kFloat).contiguous();
  at::Tensor dx = at::empty_like(s);
  // [parts, dweight and dbias, cols]
  at::Tensor sums = at::zeros({row_parts(rows), 2 * cols}, s.options().dtype(at::kFloat));
  const auto* mean = saved[2].const_data_ptr<float>();
  const auto* rstd = saved[3].const_data_ptr<float>();
  for_row_parts(rows, cols, [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
    const kernels::LayerNorm in{.type = type_of(s),
                                .rows = count(end - begin),
                                .cols = count(cols),
                                .x = row(s, begin),
                                .weight = weight.const_data_ptr<float>()};
    auto* sum = reinterpret_cast<float*>(row_out(sums, part));
    kernels::layer_norm_backward(in, mean + begin, rstd + begin, row(dy, begin),
                                 dsum.defined() ? row(dsum, begin) : nullptr, row_out(dx, begin),
                                 sum, sum + cols);
  });
  const at::Tensor total = sums.sum(0).to(w.scalar_type());
  return {dx, total.narrow(0, 0, cols), total.narrow(0, cols, cols)};
}

struct LayerNorm : public torch::autograd::Function<LayerNorm> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const at::Tensor& b, double eps) {
    const at::Tensor rows = as_rows(x);
    const Forward f = forward_rows(rows, at::Tensor(), w, b, eps);
    ctx->save_for_backward({rows, w, f.mean, f.rstd});
    ctx->saved_data["bias"] = b.scalar_type();
    return f.y.view(x.sizes());
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("layer_norm");
    const Backward g = backward_rows(ctx->get_saved_variables(), as_rows(grads[0]), at::Tensor());
    return {g.dx.view(grads[0].sizes()), g.dw, g.db.to(ctx->saved_data["bias"].toScalarType()),
            at::Tensor()};
  }
};

struct AddLayerNorm : public torch::autograd::Function<AddLayerNorm> {
  static tensor_list forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& r,
                             const at::Tensor& w, const at::Tensor& b, double eps) {
    const Forward f = forward_rows(as_rows(x), as_rows(r), w, b, eps);
    const at::Tensor sum = f.sum.view(x.sizes());
    ctx->save_for_backward({sum, w, f.mean, f.rstd});
    ctx->saved_data["bias"] = b.scalar_type();
    ctx->set_materialize_grads(false);
    return {f.y.view(x.sizes()), sum};
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("add_layer_norm");
    tensor_list saved = ctx->get_saved_variables();
    at::Tensor d;  // gradient of x and of r
    Backward g;
    if (grads[0].defined()) {
      saved[0] = as_rows(saved[0]);
      const at::Tensor past = grads[1].defined() ? as_rows(grads[1]) : at::Tensor();
      g = backward_rows(saved, as_rows(grads[0]), past);
      g.db = g.db.to(ctx->saved_data["bias"].toScalarType());
      d = g.dx.view(grads[0].sizes());
    } else {
      d = grads[1];
    }
    return {d, d, g.dw, g.db, at::Tensor()};
  }
};

at::Tensor composite(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps) {
  return at::layer_norm(x, {x.size(-1)}, w.to(x.scalar_type()), b.to(x.scalar_type()), eps);
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps) {
  if (has_cpu_kernel(x) && x.numel() > 0) return LayerNorm::apply(x, w, b, eps);
  if (gpu::takes(x) && b.defined() && w.scalar_type() == b.scalar_type()) {
    return gpu::norm(x, w, b, eps);
  }
  return composite(x, w, b, eps);
}

std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& r,
                                                 const at::Tensor& w, const at::Tensor& b,
                                                 double eps) {
  if (has_cpu_kernel(x) && x.scalar_type() == r.scalar_type() && x.sizes() == r.sizes() &&
      x.numel() > 0) {
    const tensor_list out = AddLayerNorm::apply(x, r, w, b, eps);
    return {out[0], out[1]};
  }
  if (gpu::takes(x) && x.scalar_type() == r.scalar_type() && x.sizes() == r.sizes() &&
      w.scalar_type() == b.scalar_type()) {
    return gpu::add_norm(x, r, w, b, eps);
  }
  const at::Tensor sum = x + r;
  return {composite(sum, w, b, eps), sum};
}

at::Tensor norm(const at::Tensor& x, const NormWeights& weights) {
  return weights.bias.defined() ? layer_norm(x, weights.weight, weights.bias, weights.eps)
                                : rms_norm(x, weights.weight, weights.eps);
}

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& r,
                                           const NormWeights& weights) {
  if (weights.bias.defined()) {
    return add_layer_norm(x, r, weights.weight, weights.bias, weights.eps);
  }
  if (gpu::takes(x) && x.scalar_type() == r.scalar_type() && x.sizes() == r.sizes()) {
    return gpu::add_norm(x, r, weights.weight, {}, weights.eps);
  }
  const at::Tensor sum = x + r;
  return {rms_norm(sum, weights.weight, weights.eps), sum};
}

}  // namespace tessera::nn
