#include "tessera/nn/matmul.h"

#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mm.h>

#include <vector>

#include "tessera/kernels/layers.h"
#include "tessera/nn/checkpoint.h"

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

}  // namespace

bool cpu_multiplies_bf16() {
  static const bool found = find_bf16();
  return found;
}

bool multiplies_in_fp32(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.scalar_type() == at::kBFloat16 && !cpu_multiplies_bf16();
}

at::Tensor widened(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return tensor;
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kBFloat16 ||
      !tensor.is_non_overlapping_and_dense()) {
    return tensor.to(at::kFloat);
  }
  at::Tensor wide = at::empty_like(tensor, tensor.options().dtype(at::kFloat));
  const auto* from = static_cast<const std::uint16_t*>(tensor.const_data_ptr());
  auto* to = wide.mutable_data_ptr<float>();
  at::parallel_for(0, tensor.numel(), conversion_grain, [=](std::int64_t begin, std::int64_t end) {
    kernels::widen(from + begin, to + begin, static_cast<std::size_t>(end - begin));
  });
  return wide;
}

at::Tensor narrowed(const at::Tensor& tensor) {
  if (!tensor.is_cpu() || tensor.scalar_type() != at::kFloat ||
      !tensor.is_non_overlapping_and_dense()) {
    return tensor.to(at::kBFloat16);
  }
  at::Tensor narrow = at::empty_like(tensor, tensor.options().dtype(at::kBFloat16));
  const auto* from = tensor.const_data_ptr<float>();
  auto* to = static_cast<std::uint16_t*>(narrow.mutable_data_ptr());
  at::parallel_for(0, tensor.numel(), conversion_grain, [=](std::int64_t begin, std::int64_t end) {
    kernels::narrow(from + begin, to + begin, static_cast<std::size_t>(end - begin));
  });
  return narrow;
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (!multiplies_in_fp32(a)) return at::mm(a, b);
  return addmm_in_fp32(at::Tensor(), a, b);
}

at::Tensor addmm_in_fp32(const at::Tensor& bias, const at::Tensor& a, const at::Tensor& b) {
  // As a whole, and with products that a selective checkpoint does not see: it should keep the
  // rounded result only.
  return keep_in_selective([&]() -> std::vector<at::Tensor> {
    at::Tensor wide = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kFloat));
    if (bias.defined()) {
      at::addmm_out(wide, widened(bias), widened(a), widened(b));
    } else {
      at::mm_out(wide, widened(a), widened(b));
    }
    return {narrowed(wide)};
  })[0];
}

}  // namespace tessera::nn
