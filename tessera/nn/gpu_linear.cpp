// Linear layers and activation functions on a GPU, not fused with others.

#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/deferred.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/operand.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/recorder.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn::gpu {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& w,
                            const std::optional<at::Tensor>& b) {
    const at::Tensor rows = as_rows(x);
    ctx->save_for_backward({w.requires_grad() ? rows : at::Tensor(), w, b.value_or(at::Tensor())});
    ctx->saved_data["sizes"] = x.sizes().vec();
    remember_deferral(ctx);
    return product(rows, w, b.value_or(at::Tensor()), {}, with_last(x, w.size(0)));
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
    return {dx, dw.result(), db.result()};
  }
};

struct ActFunction : torch::autograd::Function<ActFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t kind,
                            const std::optional<at::Tensor>& bias) {
    const Operand in{.kind = static_cast<Operand::Kind>(kind),
                     .x = as_rows(x),
                     .weight = {},
                     .bias = bias.value_or(at::Tensor()),
                     .mean = {},
                     .rstd = {}};
    ctx->save_for_backward({in.x, in.bias});
    ctx->saved_data["kind"] = kind;
    const at::Tensor value = in.value();
    return value.view(with_last(x, value.size(1)));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("an activation function");
    const tensor_list saved = ctx->get_saved_variables();
    const Operand in{.kind = static_cast<Operand::Kind>(ctx->saved_data["kind"].toInt()),
                     .x = saved[0],
                     .weight = {},
                     .bias = saved[1],
                     .mean = {},
                     .rstd = {}};
    const Operand::Gradients g = in.backward(as_rows(grads[0]), {}, /*overwrite=*/false);
    return {g.dx.view(with_last(grads[0], g.dx.size(1))), at::Tensor(), g.bias};
  }
};

void rotate(const at::Tensor& x, std::int64_t heads, std::int64_t dim,
            const std::vector<double>& rates, double gain, const SequencePart& part, bool back) {
  kernels::cuda::Rotary args;
  args.type = type_of(x);
  args.rows = count(x.size(0) * x.size(1)), args.stride = count(x.size(2));
  args.tokens = count(x.size(1)), args.heads = count(heads), args.dim = count(dim);
  args.rates = rates.data(), args.gain = static_cast<float>(gain), args.back = back;
  if (part.parts > 1 && x.size(1) > 0) {
    const std::vector<TokenRange> ranges = part.ranges(x.size(1));
    args.chunk = count(ranges[0].count);
    for (int c = 0; c < 2; ++c) args.first[c] = count(ranges[static_cast<std::size_t>(c)].position);
  }
  kernels::cuda::rotary(args, address(x), stream_of(x));
  x.unsafeGetTensorImpl()->bump_version();  // invalidates its known statistics
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, std::int64_t heads,
                            std::int64_t dim, const std::vector<double>& rates, double gain,
                            const SequencePart& part, bool in_place) {
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["rates"] = rates;
    ctx->saved_data["gain"] = gain;
    ctx->saved_data["part"] = part.index;
    ctx->saved_data["parts"] = part.parts;
    if (in_place) ctx->mark_dirty({x});
    const at::Tensor out = in_place ? x : x.clone(at::MemoryFormat::Contiguous);
    rotate(out, heads, dim, rates, gain, part, false);
    return out;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("rotary");
    // A gradient without other owners may be rotated in place.
    const bool own = grads[0].is_contiguous() && grads[0].use_count() == 1 &&
                     grads[0].storage().use_count() == 1;
    const at::Tensor dx = own ? grads[0] : grads[0].clone(at::MemoryFormat::Contiguous);
    const SequencePart part{static_cast<int>(ctx->saved_data["part"].toInt()),
                            static_cast<int>(ctx->saved_data["parts"].toInt())};
    rotate(dx, ctx->saved_data["heads"].toInt(), ctx->saved_data["dim"].toInt(),
           ctx->saved_data["rates"].toDoubleVector(), ctx->saved_data["gain"].toDouble(), part,
           true);
    return {dx, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
  return LinearFunction::apply(x, w, to_optional(b));
}

at::Tensor gelu(const at::Tensor& x, const at::Tensor& b) {
  return ActFunction::apply(x, static_cast<std::int64_t>(Operand::Kind::gelu), to_optional(b));
}
at::Tensor swiglu(const at::Tensor& x) {
  return ActFunction::apply(x, static_cast<std::int64_t>(Operand::Kind::swiglu), std::nullopt);
}

at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates, double gain, const SequencePart& part) {
  // In place if no one can notice: a fresh result of a linear that has no other owner and that no
  // selective segment keeps.
  const bool in_place = qkv.use_count() == 1 && qkv.is_contiguous() && !qkv.is_leaf() &&
                        !qkv.is_view() && at::GradMode::is_enabled() &&
                        Recorder::current() == nullptr;
  return RotaryFunction::apply(qkv, heads, dim, rates, gain, part, in_place);
}

}  // namespace tessera::nn::gpu
