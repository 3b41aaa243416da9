// Linear layers on a GPU, alone and after an activation function; and these functions alone.

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

// The gradient of the residual, if there was one.
at::Tensor past_product(AutogradContext* ctx, const at::Tensor& gradient) {
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
    return {dx, dw.result(), db.result(), past_product(ctx, grads[0])};
  }
};

enum class Act : std::int64_t { gelu, swiglu };

// An activation function with what it works on: GELU of x + bias, or SwiGLU of x.
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
  // dx, which is written over dy where `over` allows and the shapes do; y (may be undefined)
  // receives the output once more.
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

// act(x) · wᵀ + b + residual. Keeps x alone: what comes out of the function is computed again in
// the pass over x that backward makes anyway.
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
      const Activation again{a.act, a.x.detach(), a.bias.defined() ? a.bias.detach() : a.bias};
      later->push(w, [dout, again, w] {
        at::Tensor dw = at::empty(w.sizes(), dout.options());
        multiply_into(dw, dout, true, again.forward(), false, false);
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
            past_product(ctx, grads[0])};
  }
};

void turn(const at::Tensor& x, std::int64_t heads, std::int64_t dim,
          const std::vector<double>& rates, double gain, bool back) {
  kernels::cuda::Rotary how;
  how.type = type_of(x);
  how.rows = count(x.size(0) * x.size(1)), how.stride = count(x.size(2));
  how.tokens = count(x.size(1)), how.heads = count(heads), how.dim = count(dim);
  how.rates = rates.data(), how.gain = static_cast<float>(gain), how.back = back;
  kernels::cuda::rotary(how, address(x), stream_of(x));
  x.unsafeGetTensorImpl()->bump_version();  // whatever was known of it
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
    turn(out, heads, dim, rates, gain, false);
    return out;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("rotary");
    // A gradient that nobody else has may be turned where it is.
    const bool own = grads[0].is_contiguous() && grads[0].use_count() == 1 &&
                     grads[0].storage().use_count() == 1;
    const at::Tensor dx = own ? grads[0] : grads[0].clone(at::MemoryFormat::Contiguous);
    turn(dx, ctx->saved_data["heads"].toInt(), ctx->saved_data["dim"].toInt(),
         ctx->saved_data["rates"].toDoubleVector(), ctx->saved_data["gain"].toDouble(), true);
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                  const at::Tensor& residual) {
  return LinearFunction::apply(x, w, if_any(b), if_any(residual));
}

at::Tensor gelu(const at::Tensor& x, const at::Tensor& b) {
  return ActFunction::apply(x, static_cast<std::int64_t>(Act::gelu), if_any(b));
}
at::Tensor swiglu(const at::Tensor& x) {
  return ActFunction::apply(x, static_cast<std::int64_t>(Act::swiglu), std::nullopt);
}

at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& before, const at::Tensor& w,
                       const at::Tensor& b, const at::Tensor& residual) {
  return ActLinear::apply(x, static_cast<std::int64_t>(Act::gelu), if_any(before), w, if_any(b),
                          if_any(residual));
}
at::Tensor swiglu_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                         const at::Tensor& residual) {
  return ActLinear::apply(x, static_cast<std::int64_t>(Act::swiglu), std::nullopt, w, if_any(b),
                          if_any(residual));
}

at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates, double gain) {
  // In place where that is nobody's business: what a linear has just made and only we have, and no
  // selective segment keeps.
  const bool in_place = qkv.use_count() == 1 && qkv.is_contiguous() && !qkv.is_leaf() &&
                        !qkv.is_view() && at::GradMode::is_enabled() &&
                        Recorder::current() == nullptr;
  return RotaryFunction::apply(qkv, heads, dim, rates, gain, in_place);
}

}  // namespace tessera::nn::gpu
