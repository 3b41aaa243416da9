#include "tessera/nn/operand.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include <atomic>

#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_support.h"

namespace tessera::nn {
namespace {

std::atomic<bool> cpu_fuses = false;

at::Tensor wide(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

// The slow versions, in ATen's operations, which tests compare with the kernels.
struct Reference {
  const Operand& in;

  void normalize(Operand& out) const {
    const at::Tensor x = wide(in.x);
    if (in.bias.defined()) out.mean = x.mean(1);
    const at::Tensor centered = in.bias.defined() ? x - out.mean.unsqueeze(1) : x;
    out.rstd = (centered.square().mean(1) + in.eps).rsqrt();
  }
  at::Tensor normalized() const {
    const at::Tensor x = wide(in.x);
    return (in.mean.defined() ? x - in.mean.unsqueeze(1) : x) * in.rstd.unsqueeze(1);
  }
  at::Tensor biased() const {
    return in.bias.defined() ? in.x + in.bias.to(in.x.scalar_type()) : in.x;
  }
  at::Tensor value() const {
    switch (in.kind) {
      case Operand::Kind::plain: return in.x;
      case Operand::Kind::gelu: return at::gelu(biased(), "tanh");
      case Operand::Kind::swiglu: {
        const auto parts = in.x.chunk(2, 1);
        return at::silu(parts[0]) * parts[1];
      }
      case Operand::Kind::norm: {
        at::Tensor y = normalized() * wide(in.weight);
        if (in.bias.defined()) y = y + wide(in.bias);
        return y.to(in.x.scalar_type());
      }
    }
    return {};
  }
  Operand::Gradients backward(const at::Tensor& dy, const at::Tensor& past) const {
    switch (in.kind) {
      case Operand::Kind::plain: return {dy, {}, {}, {}, {}};
      case Operand::Kind::gelu: {
        const at::Tensor dx = at::gelu_backward(dy, biased(), "tanh");
        return {dx, {}, in.bias.defined() ? dx.sum(0).to(in.bias.scalar_type()) : in.bias, {}, {}};
      }
      case Operand::Kind::swiglu: {
        const auto parts = in.x.chunk(2, 1);
        return {at::cat({at::silu_backward(dy * parts[1], parts[0]), dy * at::silu(parts[0])}, 1),
                {},
                {},
                {},
                {}};
      }
      case Operand::Kind::norm: {
        const at::Tensor x = normalized(), g = wide(dy) * wide(in.weight);
        at::Tensor dx = g - x * (g * x).mean(1, true);
        if (in.mean.defined()) dx = dx - g.mean(1, true);
        dx = dx * in.rstd.unsqueeze(1);
        if (past.defined()) dx = dx + wide(past);
        const at::Tensor dbias =
            in.bias.defined() ? wide(dy).sum(0).to(in.bias.scalar_type()) : in.bias;
        return {dx.to(in.x.scalar_type()),
                (wide(dy) * x).sum(0).to(in.weight.scalar_type()),
                dbias,
                {},
                {}};
      }
    }
    return {};
  }
};

kernels::cuda::Norm norm_kernel(const Operand& in) {
  kernels::cuda::Norm args;
  args.type = gpu::type_of(in.x), args.weight_type = gpu::type_of(in.weight);
  args.centered = in.bias.defined();
  args.rows = count(in.x.size(0)), args.cols = count(in.x.size(1));
  args.x = gpu::address(in.x), args.weight = gpu::address(in.weight);
  args.bias = gpu::address(in.bias);
  args.eps = static_cast<float>(in.eps);
  return args;
}
kernels::cuda::Gelu gelu_kernel(const Operand& in) {
  kernels::cuda::Gelu args;
  args.type = gpu::type_of(in.x);
  args.rows = count(in.x.size(0)), args.cols = count(in.x.size(1));
  args.x = gpu::address(in.x), args.bias = gpu::address(in.bias);
  if (in.bias.defined()) args.bias_type = gpu::type_of(in.bias);
  return args;
}
kernels::cuda::SwiGlu swiglu_kernel(const Operand& in) {
  kernels::cuda::SwiGlu args;
  args.type = gpu::type_of(in.x);
  args.rows = count(in.x.size(0)), args.cols = count(in.x.size(1) / 2);
  args.x = gpu::address(in.x);
  return args;
}
float* floats(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
}

Operand::Gradients norm_backward(const Operand& in, const at::Tensor& dy, const at::Tensor& past,
                                 const at::Tensor& dx, const at::Tensor& value) {
  const gpu::ParamGradient dweight(in.weight), dbias(in.bias);
  const at::Tensor scratch = gpu::column_scratch(dy, dy.size(0), 3 * dy.size(1));
  // A model with biases in its norms also has them in the linears that receive dx.
  at::Tensor sums;
  if (in.bias.defined()) sums = at::empty({dy.size(1)}, dy.options().dtype(at::kFloat));
  const at::Tensor largest = gpu::new_largest(dy);
  kernels::cuda::Norm args = norm_kernel(in);
  args.largest = floats(largest);
  kernels::cuda::norm_backward(args, floats(in.mean), floats(in.rstd), gpu::address(dy),
                               gpu::address(past), gpu::address(dx), gpu::address(value),
                               dweight.sink(), dbias.sink(), floats(sums), floats(scratch),
                               gpu::stream_of(dy));
  return {dx, dweight.result(), dbias.result(), sums, largest};
}

}  // namespace

void fuse_on_cpu(bool on) { cpu_fuses = on; }

bool fuses(const at::Tensor& x) {
  return gpu::takes(x) || (cpu_fuses && x.is_cpu() && x.dim() > 0 && x.numel() > 0);
}

std::pair<Operand, at::Tensor> norm_operand(const at::Tensor& x, const at::Tensor& branch,
                                            const NormWeights& weights) {
  Operand out{.kind = Operand::Kind::norm,
              .x = x,
              .weight = weights.weight.contiguous(),
              .bias = weights.bias.defined() ? weights.bias.contiguous() : at::Tensor(),
              .mean = {},
              .rstd = {},
              .eps = weights.eps};
  if (!gpu::takes(x)) {
    if (branch.defined()) out.x = x + branch;
    Reference{out}.normalize(out);
    return {out, out.value()};
  }
  const auto fp32 = x.options().dtype(at::kFloat);
  out.rstd = at::empty({x.size(0)}, fp32);
  if (out.bias.defined()) out.mean = at::empty({x.size(0)}, fp32);
  kernels::cuda::Norm args = norm_kernel(out);
  args.residual = gpu::address(branch);
  const at::Tensor largest = gpu::new_largest(x);
  args.largest = floats(largest);
  if (branch.defined()) out.x = at::empty_like(x);
  at::Tensor y = at::empty_like(x);
  kernels::cuda::norm_forward(args, gpu::address(y),
                              branch.defined() ? gpu::address(out.x) : nullptr, floats(out.mean),
                              floats(out.rstd), gpu::stream_of(x));
  gpu::remember_statistics(y, {{}, largest});
  return {out, y};
}

at::Tensor Operand::value() const {
  if (kind == Kind::plain || !gpu::takes(x)) return Reference{*this}.value();
  const std::int64_t columns = kind == Kind::swiglu ? x.size(1) / 2 : x.size(1);
  at::Tensor y = at::empty({x.size(0), columns}, x.options());
  at::Tensor largest;
  switch (kind) {
    case Kind::plain: break;
    case Kind::norm:
      kernels::cuda::norm_recompute(norm_kernel(*this), floats(mean), floats(rstd), gpu::address(y),
                                    gpu::stream_of(x));
      break;
    case Kind::gelu: {
      kernels::cuda::Gelu args = gelu_kernel(*this);
      args.largest = floats(largest = gpu::new_largest(x));
      kernels::cuda::gelu_forward(args, gpu::address(y), gpu::stream_of(x));
      break;
    }
    case Kind::swiglu: {
      kernels::cuda::SwiGlu args = swiglu_kernel(*this);
      args.largest = floats(largest = gpu::new_largest(x));
      kernels::cuda::swiglu_forward(args, gpu::address(y), gpu::stream_of(x));
      break;
    }
  }
  gpu::remember_statistics(y, {{}, largest});
  return y;
}

Operand::Gradients Operand::backward(const at::Tensor& dy, const at::Tensor& past, bool overwrite,
                                     const at::Tensor& value) const {
  if (kind == Kind::plain || !gpu::takes(x)) {
    if (value.defined()) at::Tensor(value).copy_(this->value());
    return Reference{*this}.backward(dy, past);
  }
  const at::Tensor dx = overwrite && kind != Kind::swiglu ? dy : at::empty_like(x);
  at::Tensor largest;
  switch (kind) {
    case Kind::plain: break;
    case Kind::norm: return norm_backward(*this, dy, past, dx, value);
    case Kind::gelu: {
      const gpu::ParamGradient dbias(bias);
      const at::Tensor scratch = gpu::column_scratch(x, dbias ? x.size(0) : 0, x.size(1));
      kernels::cuda::Gelu args = gelu_kernel(*this);
      args.largest = floats(largest = gpu::new_largest(x));
      kernels::cuda::gelu_backward(args, gpu::address(dy), gpu::address(dx), gpu::address(value),
                                   dbias.sink(), floats(scratch), gpu::stream_of(x));
      return {dx, {}, dbias.result(), {}, largest};
    }
    case Kind::swiglu: {
      kernels::cuda::SwiGlu args = swiglu_kernel(*this);
      args.largest = floats(largest = gpu::new_largest(x));
      kernels::cuda::swiglu_backward(args, gpu::address(dy), gpu::address(dx), gpu::address(value),
                                     gpu::stream_of(x));
      return {dx, {}, {}, {}, largest};
    }
  }
  return {};
}

}  // namespace tessera::nn
