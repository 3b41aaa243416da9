#include "tessera/nn/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>

#include <limits>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/kernels/cuda/fp8.h"
#include "tessera/kernels/cuda/gemm.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_support.h"

namespace tessera::nn {
namespace {

constexpr at::ScalarType kValues = at::kFloat8_e4m3fn, kGradients = at::kFloat8_e5m2;

struct Matrix8 {
  at::Tensor rows;        // [rows, cols]
  at::Tensor transposed;  // [cols, rows rounded up to a multiple of 16], filled with zeros
  at::Tensor factor;      // fp32 [1]
};

at::Tensor largest_of(const at::Tensor& x) {
  if (const at::Tensor known = gpu::known_statistics(x).largest; known.defined()) return known;
  if (!x.is_cuda()) return x.abs().max().to(at::kFloat).view({1});
  at::Tensor largest = at::empty({1}, x.options().dtype(at::kFloat));
  kernels::cuda::largest_magnitude({gpu::type_of(x), count(x.numel()), x.const_data_ptr()},
                                   largest.mutable_data_ptr<float>(), gpu::stream_of(x));
  return largest;
}

Matrix8 reference(const at::Tensor& x, at::ScalarType type, const at::Tensor& largest,
                  bool transposed) {
  const float limit = type == kGradients ? 57344.0f : 448.0f;
  const at::Tensor some = largest.gt(0), one = at::ones_like(largest);
  const at::Tensor scale =
      at::where(some, (limit / largest).clamp_max(std::numeric_limits<float>::max()), one);
  Matrix8 out;
  out.factor = at::where(some, largest / limit, one);
  out.rows = (x.to(at::kFloat) * scale).clamp(-limit, limit).to(type);
  if (!transposed) return out;
  const std::int64_t rows = x.size(0);
  const auto padded = static_cast<std::int64_t>(kernels::cuda::fp8_rows(count(rows)));
  out.transposed =
      at::constant_pad_nd(out.rows.to(at::kFloat).t(), {0, padded - rows}).contiguous().to(type);
  return out;
}

Matrix8 to_fp8(const at::Tensor& matrix, at::ScalarType type, const at::Tensor& largest, bool rows,
               bool transposed) {
  const at::Tensor x = matrix.contiguous();
  if (!x.is_cuda()) return reference(x, type, largest, transposed);
  const auto options = x.options().dtype(type);
  Matrix8 out;
  if (rows) out.rows = at::empty(x.sizes(), options);
  if (transposed) {
    const auto padded = static_cast<std::int64_t>(kernels::cuda::fp8_rows(count(x.size(0))));
    out.transposed = at::empty({x.size(1), padded}, options);
  }
  out.factor = at::empty({1}, x.options().dtype(at::kFloat));
  kernels::cuda::ToFp8 args;
  args.type = gpu::type_of(x);
  args.to = type == kGradients ? DType::f8_e5m2 : DType::f8_e4m3;
  args.rows = count(x.size(0)), args.cols = count(x.size(1));
  args.x = x.const_data_ptr();
  args.largest = largest.const_data_ptr<float>();
  kernels::cuda::to_fp8(args, gpu::address(out.rows), gpu::address(out.transposed),
                        out.factor.mutable_data_ptr<float>(), gpu::stream_of(x));
  return out;
}

struct Factors {
  at::Tensor a, b;
};

// Computes out = a [m, k] · b [n, k]ᵀ + bias + addend.
void multiply(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
              const Factors& factors, const at::Tensor& bias, const at::Tensor& addend,
              bool fast_sums) {
  if (!out.is_cuda()) {
    at::Tensor sum = at::mm(a.to(at::kFloat), b.to(at::kFloat).t()) * (factors.a * factors.b);
    if (bias.defined()) sum = sum + bias.to(at::kFloat);
    if (addend.defined()) sum = sum + addend.to(at::kFloat).view_as(sum);
    at::Tensor(out).view({a.size(0), b.size(0)}).copy_(sum);
    return;
  }
  const auto type_of = [](const at::Tensor& x) {
    return x.scalar_type() == kGradients ? DType::f8_e5m2 : DType::f8_e4m3;
  };
  kernels::cuda::Gemm args;
  args.type = type_of(a), args.b_type = type_of(b), args.out_type = gpu::type_of(out);
  args.m = a.size(0), args.n = b.size(0), args.k = a.size(1);
  args.transpose_b = true;
  args.a = gpu::address(a), args.b = gpu::address(b);
  args.c = gpu::address(addend), args.d = gpu::address(out);
  args.bias = gpu::address(bias);
  if (bias.defined()) args.epilogue = kernels::cuda::Epilogue::bias;
  args.a_factor = factors.a.const_data_ptr<float>();
  args.b_factor = factors.b.const_data_ptr<float>();
  args.fast_sums = fast_sums;
  if (gpu::run_gemm(args, out)) return;
  const char* problem = kernels::cuda::fp8_problem();
  throw Error(
      str("The fp8 product [", args.m, ", ", args.k, "] · [", args.k, ", ", args.n,
          "] is not possible: ", problem != nullptr ? problem : "cuBLASLt has no algorithm for it.",
          " Use --precision layout."));
}

}  // namespace

void require_fp8() {
  if (const char* problem = kernels::cuda::fp8_problem()) {
    throw UsageError(
        str("--precision fp8 is not possible here: ", problem, " Use --precision layout."));
  }
}

void check_fp8(const at::Tensor& w, const std::string& label) {
  if (w.size(0) % 16 != 0 || w.size(1) % 16 != 0) {
    throw UsageError(str("--precision fp8: the weight of ", label, " is [", w.size(0), ", ",
                         w.size(1),
                         "] on each rank; both dimensions must be multiples of 16. Use --precision "
                         "layout or other dimensions."));
  }
}

Fp8Scales fp8_product_into(const at::Tensor& out, const at::Tensor& x, const at::Tensor& w,
                           const at::Tensor& bias, const at::Tensor& residual) {
  const Fp8Scales scales{largest_of(x), largest_of(w)};
  const Matrix8 a = to_fp8(x, kValues, scales.x, true, false);
  const Matrix8 b = to_fp8(w, kValues, scales.w, true, false);
  const at::Tensor add = bias.defined() ? bias.to(out.scalar_type()).contiguous() : bias;
  multiply(out, a.rows, b.rows, {a.factor, b.factor}, add, residual, /*fast_sums=*/true);
  return scales;
}

Fp8Gradient::Fp8Gradient(const at::Tensor& dy, bool for_input, bool for_weight)
    : options_(dy.options()) {
  if (!for_input && !for_weight) return;
  Matrix8 made = to_fp8(dy, kGradients, largest_of(dy), for_input, for_weight);
  rows_ = std::move(made.rows);
  transposed_ = std::move(made.transposed);
  factor_ = std::move(made.factor);
}

at::Tensor Fp8Gradient::input_gradient(const at::Tensor& w, const Fp8Scales& scales) const {
  const Matrix8 b = to_fp8(w, kValues, scales.w, false, true);
  at::Tensor dx = at::empty({rows_.size(0), w.size(1)}, options_);
  multiply(dx, rows_, b.transposed, {factor_, b.factor}, {}, {}, /*fast_sums=*/true);
  return dx;
}

void Fp8Gradient::weight_gradient(const at::Tensor& x, const Fp8Scales& scales,
                                  const at::Tensor& to, bool add) const {
  const Matrix8 b = to_fp8(x, kValues, scales.x, false, true);
  const Factors factors{factor_, b.factor};
  // cuBLASLt needs aligned results in fp8.
  if (reinterpret_cast<std::uintptr_t>(to.const_data_ptr()) % 16 != 0) {
    const at::Tensor apart = at::empty(to.sizes(), to.options());
    multiply(apart, transposed_, b.transposed, factors, {}, {}, /*fast_sums=*/false);
    at::Tensor place = to;
    add ? place.add_(apart) : place.copy_(apart);
    return;
  }
  multiply(to, transposed_, b.transposed, factors, {}, add ? to : at::Tensor(),
           /*fast_sums=*/false);
}

}  // namespace tessera::nn
