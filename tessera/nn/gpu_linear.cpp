// Linear layers on a GPU, alone and after an activation function; and the activation functions
// alone.

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/recorder.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn::gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Returns the gradient of the residual, if there was one.
at::Tensor residual_gradient(AutogradContext* ctx, const at::Tensor& gradient) {
  return ctx->saved_data["residual"].toBool() ? gradient : at::Tensor();
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b,
                            const std::optional<at::Tensor>& residual) {
    const at::Tensor rows = as_rows(x);
    ctx->save_for_backward({w.requires_grad() ? rows : at::Tensor(), w, b.value_or(at::Tensor())});
    ctx->saved_data["sizes"] = x.sizes().vec();
    ctx->saved_data["residual"] = residual.has_value();
    remember_deferral(ctx);
    return product(rows, w, b.value_or(at::Tensor()), residual ? as_rows(*residual) : at::Tensor(),
                   with_last(x, w.size(0)));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("linear");
    const tensor_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &w = saved[1], &b = saved[2];
    const at::Tensor dy = as_rows(grads[0]);
    at::Tensor dx;
    if (ctx->needs_input_grad(0)) {
      dx = input_gradient(dy, w).view(ctx->saved_data["sizes"].toIntVector());
    }
    DeferredGradients* later = deferral_of(ctx);
    const bool defer = later != nullptr && is_deferrable(w);
    if (defer) {
      later->push(w, [dy, x = x.detach(), w] {
        at::Tensor dw = at::empty(w.sizes(), dy.options());
        multiply_into(dw, dy, true, x, false, false);
        return dw;
      });
    }
    const ParamGradient dw(defer ? at::Tensor() : w), db(b);
    weight_gradient(dy, x, dw);
    bias_gradient(grads[0], db);
    return {dx, dw.result(), db.result(), residual_gradient(ctx, grads[0])};
  }
};

enum class Act : std::int64_t { gelu, swiglu };

// Activation function with its inputs: GELU of x + bias, or SwiGLU of x.
struct Activation {
  Act act = Act::gelu;
  at::Tensor x, bias;  // x as rows; bias may be undefined

  std::int64_t cols() const { return act == Act::gelu ? x.size(1) : x.size(1) / 2; }
  kernels::cuda::Gelu gelu() const {
    kernels::cuda::Gelu in;
    in.type = type_of(x);
    in.rows = count(x.size(0)), in.cols = count(x.size(1));
    in.x = address(x), in.bias = address(bias);
    if (bias.defined()) in.bias_type = type_of(bias);
    return in;
  }
  kernels::cuda::SwiGlu swiglu() const {
    return {type_of(x), count(x.size(0)), count(x.size(1) / 2), address(x)};
  }

  at::Tensor forward() const {
    at::Tensor y = at::empty({x.size(0), cols()}, x.options());
    act == Act::gelu ? kernels::cuda::gelu_forward(gelu(), address(y), stream_of(x))
                     : kernels::cuda::swiglu_forward(swiglu(), address(y), stream_of(x));
    return y;
  }
  // Returns dx, which overwrites dy if `over` and the shapes allow it. If y is defined, the output
  // is recomputed into it.
  at::Tensor backward(const at::Tensor& dy, bool over, const at::Tensor& y,
                      const ParamGradient& dbias) const {
    if (act == Act::swiglu) {
      at::Tensor dx = at::empty_like(x);
      kernels::cuda::swiglu_backward(swiglu(), address(dy), address(dx), address(y), stream_of(x));
      return dx;
    }
    at::Tensor dx = over ? dy : at::empty_like(x);
    const at::Tensor scratch = column_scratch(x, dbias ? x.size(0) : 0, x.size(1));
    kernels::cuda::gelu_backward(gelu(), address(dy), address(dx), address(y), dbias.sink(),
                                 scratch.mutable_data_ptr<float>(), stream_of(x));
    return dx;
  }
};

struct ActFunction : torch::autograd::Function<ActFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t act,
                            const std::optional<at::Tensor>& bias) {
    const Activation a{static_cast<Act>(act), as_rows(x), bias.value_or(at::Tensor())};
    ctx->save_for_backward({a.x, a.bias});
    ctx->saved_data["act"] = act;
    return a.forward().view(with_last(x, a.cols()));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("an activation function");
    const tensor_list saved = ctx->get_saved_variables();
    const Activation a{static_cast<Act>(ctx->saved_data["act"].toInt()), saved[0], saved[1]};
    const ParamGradient dbias(a.bias);
    const at::Tensor dx = a.backward(as_rows(grads[0]), false, {}, dbias);
    return {dx.view(with_last(grads[0], dx.size(1))), at::Tensor(), dbias.result()};
  }
};

// act(x) · wᵀ + b + residual. Keeps only x: the output of the function is recomputed in the pass
// over x that backward makes anyway.
struct ActLinear : torch::autograd::Function<ActLinear> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t act,
                            const std::optional<at::Tensor>& before, const at::Tensor& w,
                            const std::optional<at::Tensor>& b,
                            const std::optional<at::Tensor>& residual) {
    const Activation a{static_cast<Act>(act), as_rows(x), before.value_or(at::Tensor())};
    ctx->save_for_backward({a.x, a.bias, w, b.value_or(at::Tensor())});
    ctx->saved_data["act"] = act;
    ctx->saved_data["residual"] = residual.has_value();
    remember_deferral(ctx);
    return product(a.forward(), w, b.value_or(at::Tensor()),
                   residual ? as_rows(*residual) : at::Tensor(), with_last(x, w.size(0)));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("an activation function and a linear");
    const tensor_list saved = ctx->get_saved_variables();
    const Activation a{static_cast<Act>(ctx->saved_data["act"].toInt()), saved[0], saved[1]};
    const at::Tensor &w = saved[2], &b = saved[3];
    const at::Tensor dout = as_rows(grads[0]);
    DeferredGradients* later = deferral_of(ctx);
    const bool defer = later != nullptr && is_deferrable(w);
    at::Tensor y;
    if (!defer && w.requires_grad()) y = at::empty({a.x.size(0), a.cols()}, a.x.options());
    const ParamGradient dbefore(a.bias);
    const at::Tensor dx = a.backward(input_gradient(dout, w), true, y, dbefore);
    if (defer) {
      const Activation recomputed{a.act, a.x.detach(), a.bias.defined() ? a.bias.detach() : a.bias};
      later->push(w, [dout, recomputed, w] {
        at::Tensor dw = at::empty(w.sizes(), dout.options());
        multiply_into(dw, dout, true, recomputed.forward(), false, false);
        return dw;
      });
    }
    const ParamGradient dw(defer ? at::Tensor() : w), db(b);
    weight_gradient(dout, y, dw);
    bias_gradient(grads[0], db);
    return {dx.view(with_last(grads[0], dx.size(1))),
            at::Tensor(),
            dbefore.result(),
            dw.result(),
            db.result(),
            residual_gradient(ctx, grads[0])};
  }
};

void rotate(const at::Tensor& x, std::int64_t heads, std::int64_t dim,
            const std::vector<double>& rates, double gain, bool back) {
  kernels::cuda::Rotary args;
  args.type = type_of(x);
  args.rows = count(x.size(0) * x.size(1)), args.stride = count(x.size(2));
  args.tokens = count(x.size(1)), args.heads = count(heads), args.dim = count(dim);
  args.rates = rates.data(), args.gain = static_cast<float>(gain), args.back = back;
  kernels::cuda::rotary(args, address(x), stream_of(x));
  x.unsafeGetTensorImpl()->bump_version();  // invalidates its known sums
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t heads,
                            std::int64_t dim, const std::vector<double>& rates, double gain,
                            bool in_place) {
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["rates"] = rates;
    ctx->saved_data["gain"] = gain;
    if (in_place) ctx->mark_dirty({x});
    const at::Tensor out = in_place ? x : x.clone(at::MemoryFormat::Contiguous);
    rotate(out, heads, dim, rates, gain, false);
    return out;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("rotary");
    // A gradient without other owners may be rotated in place.
    const bool own = grads[0].is_contiguous() && grads[0].use_count() == 1 &&
                     grads[0].storage().use_count() == 1;
    const at::Tensor dx = own ? grads[0] : grads[0].clone(at::MemoryFormat::Contiguous);
    rotate(dx, ctx->saved_data["heads"].toInt(), ctx->saved_data["dim"].toInt(),
           ctx->saved_data["rates"].toDoubleVector(), ctx->saved_data["gain"].toDouble(), true);
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                  const at::Tensor& residual) {
  return LinearFunction::apply(x, w, to_optional(b), to_optional(residual));
}

at::Tensor gelu(const at::Tensor& x, const at::Tensor& b) {
  return ActFunction::apply(x, static_cast<std::int64_t>(Act::gelu), to_optional(b));
}
at::Tensor swiglu(const at::Tensor& x) {
  return ActFunction::apply(x, static_cast<std::int64_t>(Act::swiglu), std::nullopt);
}

at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& before, const at::Tensor& w,
                       const at::Tensor& b, const at::Tensor& residual) {
  return ActLinear::apply(x, static_cast<std::int64_t>(Act::gelu), to_optional(before), w,
                          to_optional(b), to_optional(residual));
}
at::Tensor swiglu_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                         const at::Tensor& residual) {
  return ActLinear::apply(x, static_cast<std::int64_t>(Act::swiglu), std::nullopt, w,
                          to_optional(b), to_optional(residual));
}

at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates, double gain) {
  // In place if no one can notice: a fresh result of a linear that has no other owner and that no
  // selective segment keeps.
  const bool in_place = qkv.use_count() == 1 && qkv.is_contiguous() && !qkv.is_leaf() &&
                        !qkv.is_view() && at::GradMode::is_enabled() &&
                        Recorder::current() == nullptr;
  return RotaryFunction::apply(qkv, heads, dim, rates, gain, in_place);
}

}  // namespace tessera::nn::gpu
