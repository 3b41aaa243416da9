#include "tessera/nn/matmul.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <vector>

#include "tessera/kernels/layers.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/parallel_for.h"
#include "tessera/nn/recompute.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace tessera::nn {
namespace {

constexpr std::int64_t conversion_grain = 1 << 16;  // elements

bool find_bf16() {
#if defined(__aarch64__)
  constexpr unsigned long hwcap2_bf16 = 1ul << 14;
  return (getauxval(AT_HWCAP2) & hwcap2_bf16) != 0;
#elif defined(__x86_64__)
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq");
#else
  return false;
#endif
}

// [Note: written transposed] On Arm, ATen computes a · bᵀ in fp32 with oneDNN and the Arm Compute
// Library. That is slower than OpenBLAS (by 5% for large matrices, by half for those of attention),
// and it uses its own threads, which at::set_num_threads does not limit. ATen does so only if the
// result is row-major, so b · aᵀ is written into the transposed result instead, which is the same
// memory.
bool is_written_transposed([[maybe_unused]] const at::Tensor& out) {
#if defined(__aarch64__)
  return out.is_cpu() && out.scalar_type() == at::kFloat;
#else
  return false;
#endif
}

}  // namespace

bool cpu_multiplies_bf16() {
  static const bool found = find_bf16();
  return found;
}

bool multiplies_in_fp32(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kBFloat16 && !cpu_multiplies_bf16();
}

at::Tensor to_fp32(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return tensor;
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kBFloat16 ||
      !tensor.is_non_overlapping_and_dense()) {
    return tensor.to(at::kFloat);
  }
  at::Tensor wide = at::empty_like(tensor, tensor.options().dtype(at::kFloat));
  const auto* from = static_cast<const std::uint16_t*>(tensor.const_data_ptr());
  auto* to = wide.mutable_data_ptr<float>();
  parallel_for(0, tensor.numel(), conversion_grain, [=](std::int64_t begin, std::int64_t end) {
    kernels::widen(from + begin, to + begin, static_cast<std::size_t>(end - begin));
  });
  return wide;
}

at::Tensor to_bf16(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kFloat ||
      !tensor.is_non_overlapping_and_dense()) {
    return tensor.to(at::kBFloat16);
  }
  at::Tensor narrow = at::empty_like(tensor, tensor.options().dtype(at::kBFloat16));
  const auto* from = tensor.const_data_ptr<float>();
  auto* to = static_cast<std::uint16_t*>(narrow.mutable_data_ptr());
  parallel_for(0, tensor.numel(), conversion_grain, [=](std::int64_t begin, std::int64_t end) {
    kernels::narrow(from + begin, to + begin, static_cast<std::size_t>(end - begin));
  });
  return narrow;
}

bool beats_aten(const at::Tensor& tensor) {
  return multiplies_in_fp32(tensor) || is_written_transposed(tensor);
}

GemmByRows::GemmByRows(std::int64_t rows, const at::Tensor& w, const at::Tensor& bias)
    : type_(w.scalar_type()), weight_(multiplies_in_fp32(w) ? to_fp32(w) : w) {
  if (bias.defined()) {
    bias_ = weight_.scalar_type() == at::kFloat ? to_fp32(bias) : bias.to(type_);
  }
  out_ = at::empty({rows, w.size(0)}, weight_.options());
  swap_ = is_written_transposed(out_);
}

void GemmByRows::multiply(std::int64_t begin, const at::Tensor& a) {
  if (a.size(0) == 0) return;
  const at::Tensor here = weight_.scalar_type() == type_ ? a : to_fp32(a);
  const at::Tensor rows = out_.narrow(0, begin, a.size(0));
  if (gpu::takes(here) && here.is_contiguous() && weight_.is_contiguous()) {
    return gpu::product_into(rows, here, weight_, bias_);
  }
  at::Tensor place = swap_ ? rows.t() : rows;
  const at::Tensor left = swap_ ? weight_ : here, right = (swap_ ? here : weight_).t();
  if (bias_.defined()) {
    at::addmm_out(place, swap_ ? bias_.unsqueeze(1) : bias_, left, right);
  } else {
    at::mm_out(place, left, right);
  }
}

at::Tensor GemmByRows::rows(std::int64_t begin, std::int64_t count) const {
  const at::Tensor some = out_.narrow(0, begin, count);
  return weight_.scalar_type() == type_ ? some : to_bf16(some);
}

at::Tensor GemmByRows::result() const {
  return weight_.scalar_type() == type_ ? out_ : to_bf16(out_);
}

// Uses out-variants of the products, which selective recomputation does not see: it must keep only
// the final result.
at::Tensor gemm_nt(const at::Tensor& a, const at::Tensor& w, const at::Tensor& bias) {
  if (gpu::takes(a) && a.is_contiguous() && w.is_contiguous() &&
      a.scalar_type() == w.scalar_type()) {
    return gpu::product(a, w, bias, {}, {a.size(0), w.size(0)});
  }
  if (!beats_aten(a)) {
    return bias.defined() ? at::addmm(bias.to(a.scalar_type()), a, w.t()) : at::mm(a, w.t());
  }
  return keep_in_selective("a · wᵀ", {a, w, bias}, [&]() -> std::vector<at::Tensor> {
    GemmByRows product(a.size(0), w, bias);
    product.multiply(0, a);
    return {product.result()};
  })[0];
}

void bmm_nt_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  const bool swap = is_written_transposed(out);
  at::Tensor place = swap ? out.transpose(1, 2) : out;
  at::bmm_out(place, swap ? b : a, (swap ? a : b).transpose(1, 2));
}

}  // namespace tessera::nn
