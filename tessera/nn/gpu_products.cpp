// Tensors, gradients of parameters and matrix products on a GPU.

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/convert.h"
#include "tessera/kernels/cuda/gemm.h"
#include "tessera/kernels/cuda/gemm_runtime.h"
#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/gradient_place.h"
#include "tessera/nn/matmul_precision.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/recompute.h"

namespace tessera::nn::gpu {

using kernels::cuda::Epilogue;
using kernels::cuda::Gemm;

bool takes(const at::Tensor& tensor) {
  return tensor.is_cuda() && kernels::cuda::built() && tensor.layout() == at::kStrided &&
         tensor.numel() > 0 && tensor.dim() > 0 &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16 ||
          tensor.scalar_type() == at::kHalf);
}

StreamOf::StreamOf(const at::Tensor& tensor)
    : guard_(tensor.device()),
      stream_(c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(tensor.device()).native_handle()) {}

bool recording(const at::Tensor& tensor) {
  return tensor.is_cuda() && kernels::cuda::built() && kernels::cuda::capturing(stream_of(tensor));
}

DType type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return DType::f32;
    case at::kBFloat16: return DType::bf16;
    case at::kHalf: return DType::f16;
    default:
      throw UsageError(str("CUDA kernels do not support tensors of type ",
                           c10::toString(tensor.scalar_type()), ". Use float, bfloat16 or half."));
  }
}

void copy(const at::Tensor& to, const at::Tensor& from) {
  if (takes(to) && takes(from) && to.device() == from.device() && to.sizes() == from.sizes() &&
      to.scalar_type() != from.scalar_type() && to.is_contiguous() && from.is_contiguous()) {
    return kernels::cuda::convert(
        {type_of(from), type_of(to), count(to.numel()), from.const_data_ptr(), address(to)},
        stream_of(to));
  }
  to.copy_(from);
}

at::Tensor column_scratch(const at::Tensor& like, std::int64_t rows, std::int64_t cols) {
  const std::size_t floats = kernels::cuda::column_scratch(count(rows), count(cols));
  return at::empty({static_cast<std::int64_t>(floats)}, like.options().dtype(at::kFloat));
}

ParamGradient::ParamGradient(const at::Tensor& param) {
  if (!param.defined() || !param.requires_grad()) return;
  // A place that is taken must be written, because the sum of earlier passes in it then has no
  // other owner. It has the parameter's strides, and kernels write rows.
  const GradientPlace::Place place =
      param.is_contiguous() ? take_place(param) : GradientPlace::Place();
  if (place.to.defined()) {
    to_ = place.to;
    add_ = place.add;
    in_place_ = true;
  } else {
    to_ = at::empty(param.sizes(), param.options());
  }
}

kernels::cuda::Sink ParamGradient::sink() const {
  if (!to_.defined()) return {};
  return {to_.mutable_data_ptr(), type_of(to_), add_};
}

at::Tensor ParamGradient::result() const { return in_place_ ? to_.detach() : to_; }

bool run_gemm(Gemm& args, const at::Tensor& on) {
  if (!on.is_cuda() || kernels::cuda::gemm_problem() != nullptr) return false;
  if (args.type == DType::f32) args.tf32 = allows_tf32();
  // The caching allocator reuses it for whatever comes next on this stream.
  const auto bytes = static_cast<std::int64_t>(kernels::cuda::kGemmWorkspace);
  const at::Tensor workspace = at::empty({bytes}, on.options().dtype(at::kByte));
  return kernels::cuda::gemm(args, {workspace.mutable_data_ptr(), kernels::cuda::kGemmWorkspace},
                             /*tune=*/true, stream_of(on));
}

void product_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w,
                  const at::Tensor& bias, const at::Tensor& residual) {
  const at::Tensor b = bias.defined() ? bias.to(x.scalar_type()).contiguous() : bias;
  Gemm args;
  args.type = type_of(x), args.out_type = type_of(out);
  args.m = x.size(0), args.n = w.size(0), args.k = x.size(1);
  args.transpose_b = true;
  args.a = address(x), args.b = address(w), args.c = address(residual), args.d = address(out);
  args.bias = address(b);
  if (b.defined()) args.epilogue = Epilogue::bias;
  if (run_gemm(args, x)) return;
  at::Tensor rows = out.view({x.size(0), w.size(0)});
  b.defined() ? at::addmm_out(rows, b, x, w.t()) : at::mm_out(rows, x, w.t());
  if (residual.defined()) rows.add_(residual);
}

at::Tensor product(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias,
                   const at::Tensor& residual, at::IntArrayRef sizes) {
  return keep_in_selective("x · wᵀ", {x, w, bias, residual}, [&]() -> std::vector<at::Tensor> {
    at::Tensor out = at::empty(sizes, x.options());
    product_into(out, x, w, bias, residual);
    return {out};
  })[0];
}

void multiply_into(const at::Tensor& out, const at::Tensor& a, bool transpose_a,
                   const at::Tensor& b, bool transpose_b, bool add) {
  Gemm args;
  args.type = type_of(a), args.out_type = type_of(out);
  args.m = out.size(0), args.n = out.size(1), args.k = a.size(transpose_a ? 0 : 1);
  args.transpose_a = transpose_a, args.transpose_b = transpose_b;
  args.a = address(a), args.b = address(b), args.d = address(out);
  args.c = add ? args.d : nullptr;
  if (run_gemm(args, a)) return;
  const at::Tensor left = transpose_a ? a.t() : a, right = transpose_b ? b.t() : b;
  at::Tensor place = out;
  if (out.scalar_type() != a.scalar_type()) {
    const at::Tensor wide = at::mm(left.to(out.scalar_type()), right.to(out.scalar_type()));
    add ? place.add_(wide) : place.copy_(wide);
  } else if (add) {
    at::addmm_out(place, place, left, right);
  } else {
    at::mm_out(place, left, right);
  }
}

at::Tensor input_gradient(const at::Tensor& dy, const at::Tensor& w) {
  at::Tensor dx = at::empty({dy.size(0), w.size(1)}, dy.options());
  multiply_into(dx, dy, false, w, false, false);
  return dx;
}

void weight_gradient(const at::Tensor& dy, const at::Tensor& x, const ParamGradient& to) {
  if (to) multiply_into(to.to(), dy, true, x, false, to.add());
}

// Not with cuBLASLt's epilogue, which takes longer than a separate pass.
void bias_gradient(const at::Tensor& gradient, const ParamGradient& to) {
  if (!to) return;
  const at::Tensor sums = known_statistics(gradient).sums;
  if (sums.defined()) {
    kernels::cuda::put_sums(sums.const_data_ptr<float>(), count(sums.numel()), to.sink(),
                            stream_of(gradient));
    return;
  }
  const at::Tensor dy = as_rows(gradient);
  if (!dy.is_cuda()) {
    at::Tensor place = to.to();
    const at::Tensor sum = dy.sum(0);
    to.add() ? place.add_(sum) : place.copy_(sum);
    return;
  }
  const at::Tensor scratch = column_scratch(dy, dy.size(0), dy.size(1));
  kernels::cuda::column_sums({type_of(dy), count(dy.size(0)), count(dy.size(1)), address(dy)},
                             to.sink(), scratch.mutable_data_ptr<float>(), stream_of(dy));
}

namespace {

// Identified by memory, because a recomputed segment passes on an alias.
struct Known {
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  Weak storage{c10::intrusive_ptr<c10::StorageImpl>()};
  const void* data = nullptr;
  std::int64_t count = 0;
  std::uint32_t version = 0;
  Statistics statistics;
};
// Statistics of the last tensors. A tensor is used before the third one after it is computed.
thread_local std::array<Known, 3> known;
thread_local std::size_t next_known = 0;

std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

void remember_statistics(const at::Tensor& tensor, const Statistics& statistics) {
  if (!tensor.defined()) return;
  if (!statistics.sums.defined() && !statistics.largest.defined()) return;
  next_known = (next_known + 1) % known.size();
  known[next_known] = {Known::Weak(tensor.storage().getWeakStorageImpl()), tensor.const_data_ptr(),
                       tensor.numel(), version_of(tensor), statistics};
}

Statistics known_statistics(const at::Tensor& tensor) {
  for (Known& each : known) {
    const Statistics& found = each.statistics;
    if (!found.sums.defined() && !found.largest.defined()) continue;
    if (each.storage.expired()) {  // the tensor was freed
      each = {};
    } else if (each.storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
               each.data == tensor.const_data_ptr() && each.count == tensor.numel() &&
               each.version == version_of(tensor) && tensor.is_contiguous()) {
      const bool columns = found.sums.defined() && found.sums.numel() == tensor.size(-1);
      return {columns ? found.sums : at::Tensor(), found.largest};
    }
  }
  return {};
}

at::Tensor new_largest(const at::Tensor& like) {
  if (!computes_in_fp8()) return {};
  return at::zeros({1}, like.options().dtype(at::kFloat));
}

}  // namespace tessera::nn::gpu
