#include "tessera/nn/gpu_attention_part.h"

#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/full.h>

#include <limits>
#include <optional>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::nn {
namespace {

// Efficient attention pads the log-sum-exp of a head to a multiple of this.
constexpr std::int64_t kPaddedQueries = 32;

// Flash attention's limit on the left: its masks are aligned at the last query and the last key.
std::int64_t aligned_left(const at::Tensor& q, const at::Tensor& k, const GpuPart& part) {
  return part.left + k.size(1) - q.size(1);
}

void check_gpu_part(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const GpuPart& part) {
  const bool tensors = q.dim() == 4 && k.dim() == 4 && v.sizes() == k.sizes() &&
                       q.size(0) == k.size(0) && q.size(3) == k.size(3) && q.numel() > 0 &&
                       k.numel() > 0 && q.size(2) % k.size(2) == 0;
  const bool masks = tensors && (!part.causal || q.size(1) == k.size(1)) &&
                     (part.left < 0 || (part.kernel == AttentionKernel::flash_masked &&
                                        aligned_left(q, k, part) >= 0));
  if (masks) return;
  throw UsageError(tessera::str(
      "Attention of a part on a GPU: queries ", q.sizes(), ", keys ", k.sizes(), " and values ",
      v.sizes(), " with kernel ", name(part.kernel), part.causal ? ", causal" : "", ", left ",
      part.left,
      ". They must be [batch, tokens, heads, head width] and not empty, with as many keys as "
      "queries if causal. A limit on the left needs the kernel flash with a mask, and every query "
      "must see a key."));
}

// Returns x with the strides of a new tensor. torch's cuDNN attention caches plans by the strides
// of queries, keys and values only, and expects those of the other operands to follow from them.
at::Tensor dense(const at::Tensor& x) { return x.contiguous().flatten().view(x.sizes()); }

at::Tensor by_head(const at::Tensor& x) { return x.transpose(1, 2); }

// Keys for every head that uses them, [B, T, heads, d], and the sum of their gradients.
at::Tensor for_heads(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t times = heads / x.size(2);
  return times == 1 ? x : x.unsqueeze(3).expand({-1, -1, -1, times, -1}).flatten(2, 3);
}
at::Tensor over_heads(const at::Tensor& x, std::int64_t kv_heads) {
  return x.size(2) == kv_heads ? x : x.unflatten(2, {kv_heads, -1}).sum(3);
}

std::optional<double> scale_of(const GpuPart& part) {
  return part.scale > 0 ? std::optional<double>(part.scale) : std::nullopt;
}
// Flash attention's limits on the left and on the right.
struct Limits {
  std::optional<std::int64_t> left, right;
};
Limits limits_of(const at::Tensor& q, const at::Tensor& k, const GpuPart& part) {
  if (part.left < 0) return {};
  return {aligned_left(q, k, part), part.causal ? std::optional<std::int64_t>(0) : std::nullopt};
}

[[noreturn]] void refuse_kernel(AttentionKernel kernel) {
  throw UsageError(tessera::str("Attention of a part on a GPU: the kernel is ", name(kernel),
                                ". Choose one with nn::attention_kernel()."));
}

}  // namespace

GpuPartResult gpu_part_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const GpuPart& part) {
  check_gpu_part(q, k, v, part);
  const std::int64_t heads = q.size(2), queries = q.size(1);
  switch (part.kernel) {
    case AttentionKernel::cudnn: {
      const auto r = at::_scaled_dot_product_cudnn_attention(
          by_head(dense(q)), by_head(dense(k)), by_head(dense(v)), {}, /*compute_log_sumexp=*/true,
          0.0, part.causal, /*return_debug_mask=*/false, scale_of(part));
      return {by_head(std::get<0>(r)), std::get<1>(r), std::get<6>(r), std::get<7>(r)};
    }
    case AttentionKernel::flash:
    case AttentionKernel::flash_masked: {
      const auto [left, right] = limits_of(q, k, part);
      const auto r =
          at::_flash_attention_forward(q, k, v, {}, {}, queries, k.size(1), 0.0, part.causal,
                                       /*return_debug_mask=*/false, scale_of(part), left, right);
      return {std::get<0>(r), std::get<1>(r), std::get<2>(r), std::get<3>(r)};
    }
    case AttentionKernel::efficient: {
      const auto r = at::_scaled_dot_product_efficient_attention(
          by_head(q), by_head(for_heads(k, heads)), by_head(for_heads(v, heads)), {},
          /*compute_log_sumexp=*/true, 0.0, part.causal, scale_of(part));
      return {by_head(std::get<0>(r)), std::get<1>(r).narrow(2, 0, queries), std::get<2>(r),
              std::get<3>(r)};
    }
    case AttentionKernel::none: break;
  }
  refuse_kernel(part.kernel);
}

PartialGradients gpu_part_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const at::Tensor& dout, const GpuPartResult& whole,
                                   const GpuPart& part) {
  check_gpu_part(q, k, v, part);
  const std::int64_t heads = q.size(2), queries = q.size(1), keys = k.size(1);
  const at::Tensor absent;
  PartialGradients grad;
  switch (part.kernel) {
    case AttentionKernel::cudnn:
      std::tie(grad.q, grad.k, grad.v) = at::_scaled_dot_product_cudnn_attention_backward(
          by_head(dense(dout)), by_head(dense(q)), by_head(dense(k)), by_head(dense(v)),
          by_head(dense(whole.out)), dense(whole.lse), whole.seed, whole.offset, absent, absent,
          absent, queries, keys, 0.0, part.causal, scale_of(part));
      return {by_head(grad.q), by_head(grad.k), by_head(grad.v)};
    case AttentionKernel::flash:
    case AttentionKernel::flash_masked: {
      const auto [left, right] = limits_of(q, k, part);
      std::tie(grad.q, grad.k, grad.v) = at::_flash_attention_backward(
          dout, q, k, v, whole.out, whole.lse.contiguous(), absent, absent, queries, keys, 0.0,
          part.causal, whole.seed, whole.offset, scale_of(part), left, right);
      return grad;
    }
    case AttentionKernel::efficient: {
      const std::int64_t padded = (queries + kPaddedQueries - 1) / kPaddedQueries * kPaddedQueries;
      const at::Tensor lse = at::full({q.size(0), heads, padded},
                                      std::numeric_limits<float>::infinity(), whole.lse.options());
      lse.narrow(2, 0, queries).copy_(whole.lse);
      std::tie(grad.q, grad.k, grad.v, std::ignore) =
          at::_scaled_dot_product_efficient_attention_backward(
              by_head(dout), by_head(q), by_head(for_heads(k, heads)), by_head(for_heads(v, heads)),
              absent, by_head(whole.out), lse, whole.seed, whole.offset, 0.0,
              {true, true, true, false}, part.causal, scale_of(part));
      return {by_head(grad.q), over_heads(by_head(grad.k), k.size(2)),
              over_heads(by_head(grad.v), k.size(2))};
    }
    case AttentionKernel::none: break;
  }
  refuse_kernel(part.kernel);
}

}  // namespace tessera::nn
