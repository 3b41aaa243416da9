#include "tessera/nn/ops.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <vector>

#include "tessera/kernels/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/matmul.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

}  // namespace

ProductGradients product_gradients(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w,
                                   bool want_x, bool want_w) {
  ProductGradients result;
  if (gpu::takes(dy) && dy.is_contiguous() && (!want_x || w.is_contiguous()) &&
      (!want_w || x.is_contiguous())) {
    if (want_x) result.dx = gpu::input_gradient(dy, w);
    if (want_w) {
      result.dw = at::empty({dy.size(1), x.size(1)}, dy.options());
      gpu::multiply_into(result.dw, dy, true, x, false, false);
    }
    return result;
  }
  if (!multiplies_in_fp32(dy)) {
    if (want_x) result.dx = at::mm(dy, w);
    if (want_w) result.dw = at::mm(dy.t(), x);
    return result;
  }
  refuse_second_derivatives("a product of bf16 in fp32");
  const at::Tensor wide = to_fp32(dy);
  if (want_x) result.dx = to_bf16(at::mm(wide, to_fp32(w)));
  if (want_w) result.dw = to_bf16(at::mm(wide.t(), to_fp32(x)));
  return result;
}

namespace {

// Defers the weight's gradient if forward ran in a scope. Returns whether it did.
bool defer(AutogradContext* ctx, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w) {
  DeferredGradients* later = deferral_of(ctx);
  if (later == nullptr || !ctx->needs_input_grad(1) || !is_deferrable(w)) return false;
  later->push(w, [dy, x = x.detach(), w] { return product_gradients(dy, x, w, false, true).dw; });
  return true;
}

}  // namespace

ProductGradients product_gradients(AutogradContext* ctx, const at::Tensor& dy, const at::Tensor& x,
                                   const at::Tensor& w) {
  const bool later = defer(ctx, dy, x, w);
  return product_gradients(dy, x, w, ctx->needs_input_grad(0), !later && ctx->needs_input_grad(1));
}

at::Tensor weight_gradient(AutogradContext* ctx, const at::Tensor& dy, const at::Tensor& x,
                           const at::Tensor& w) {
  if (!ctx->needs_input_grad(1) || defer(ctx, dy, x, w)) return {};
  return product_gradients(dy, x, w, false, true).dw;
}

namespace {

// Used only where gemm_nt is faster than ATen or the gradient may be deferred; otherwise at::linear
// does the same.
struct Linear : public torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b) {
    const at::Tensor rows = as_rows(x);
    // A frozen weight needs no gradient, so x is not needed either.
    ctx->save_for_backward({w.requires_grad() ? rows : at::Tensor(), w});
    ctx->saved_data["sizes"] = x.sizes().vec();
    if (b) ctx->saved_data["bias"] = b->scalar_type();
    remember_deferral(ctx);
    return gemm_nt(rows, w, b.value_or(at::Tensor())).view(with_last(x, w.size(0)));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = as_rows(grads[0]);
    ProductGradients g = product_gradients(ctx, dy, saved[0], saved[1]);
    if (g.dx.defined()) g.dx = g.dx.view(ctx->saved_data["sizes"].toIntVector());
    at::Tensor db;
    if (const auto bias = ctx->saved_data["bias"]; !bias.isNone() && ctx->needs_input_grad(2)) {
      db = dy.sum(0).to(bias.toScalarType());
    }
    return {g.dx, g.dw, db};
  }
};

void gelu_forward_rows(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& y) {
  const float* b = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  for_row_parts(x.size(0), x.size(1), [&](std::int64_t begin, std::int64_t end, std::int64_t) {
    kernels::gelu_forward({type_of(x), count(end - begin), count(x.size(1)), row(x, begin), b},
                          row_out(y, begin));
  });
}

// Returns dx, and writes the sum of its rows to `dbias` if not null.
at::Tensor gelu_backward_rows(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& dy,
                              at::Tensor* dbias) {
  at::Tensor dx = at::empty_like(x);
  const float* b = bias.defined() ? bias.const_data_ptr<float>() : nullptr;
  at::Tensor sums;
  if (dbias != nullptr) {
    sums = at::zeros({row_parts(x.size(0)), x.size(1)}, x.options().dtype(at::kFloat));
  }
  for_row_parts(x.size(0), x.size(1), [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
    float* sum = dbias == nullptr ? nullptr : reinterpret_cast<float*>(row_out(sums, part));
    kernels::gelu_backward({type_of(x), count(end - begin), count(x.size(1)), row(x, begin), b},
                           row(dy, begin), row_out(dx, begin), sum);
  });
  if (dbias != nullptr) *dbias = sums.sum(0);
  return dx;
}

struct Gelu : public torch::autograd::Function<Gelu> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::optional<at::Tensor>& b) {
    const at::Tensor rows = as_rows(x);
    ctx->save_for_backward({rows, b.value_or(at::Tensor())});
    at::Tensor y = at::empty(x.sizes(), x.options());
    gelu_forward_rows(rows, b ? b->to(at::kFloat).contiguous() : at::Tensor(), as_rows(y));
    return y;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("gelu");
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &b = saved[1];
    const at::Tensor dy = as_rows(grads[0]);
    if (!b.defined()) {
      return {gelu_backward_rows(x, {}, dy, nullptr).view(grads[0].sizes()), at::Tensor()};
    }
    at::Tensor db;
    const at::Tensor dx = gelu_backward_rows(x, b.to(at::kFloat).contiguous(), dy, &db);
    return {dx.view(grads[0].sizes()), db.to(b.scalar_type())};
  }
};

}  // namespace

bool gelu_adds_bias(const at::Tensor& x) {
  return (has_cpu_kernel(x) && x.dim() > 0 && x.numel() > 0) || gpu::takes(x);
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (gpu::takes(x) && x.scalar_type() == w.scalar_type()) return gpu::linear(x, w, b);
  const auto bias = b.defined() ? std::optional<at::Tensor>(b) : std::nullopt;
  const bool ours = beats_aten(x) || DeferredGradients::current();
  if (ours && x.scalar_type() == w.scalar_type() && x.numel() > 0) {
    return Linear::apply(x, w, bias);
  }
  return at::linear(x, w, bias);
}

at::Tensor gelu(const at::Tensor& x, const at::Tensor& b) {
  const auto bias = b.defined() ? std::optional<at::Tensor>(b) : std::nullopt;
  if (gpu::takes(x)) return gpu::gelu(x, b);
  if (gelu_adds_bias(x)) return Gelu::apply(x, bias);
  return at::gelu(bias ? x + b.to(x.scalar_type()) : x, "tanh");
}

at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  if (gelu_adds_bias(x) && b.defined()) return nn::gelu(nn::linear(x, w, at::Tensor()), b);
  return nn::gelu(nn::linear(x, w, b));
}

}  // namespace tessera::nn
