#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_flash_attention_backward.h>
#include <ATen/ops/_flash_attention_forward.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention.h>
#include <ATen/ops/_scaled_dot_product_cudnn_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "tessera/core/errors.h"
#include "tessera/kernels/cuda/layers.h"
#include "tessera/nn/gpu.h"
#include "tessera/nn/ops_attention.h"
#include "tessera/nn/ops_support.h"
#include "tessera/nn/recompute.h"
#include "tessera/nn/second_derivatives.h"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// Views, each [B, heads, T, d].
struct HeadViews {
  at::Tensor q, k, v;
};

HeadViews views_of(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t all = heads + 2 * kv_heads;
  const at::Tensor apart = qkv.view({qkv.size(0), qkv.size(1), all, qkv.size(2) / all});
  return {apart.narrow(2, 0, heads).transpose(1, 2),
          apart.narrow(2, heads, kv_heads).transpose(1, 2),
          apart.narrow(2, heads + kv_heads, kv_heads).transpose(1, 2)};
}

// Convert [B, T, heads · d] to [B, heads, T, d] and back (copied only if the strides require it).
at::Tensor by_heads(const at::Tensor& x, std::int64_t heads) {
  return x.view({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}
at::Tensor by_tokens(const at::Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0), x.size(2), x.size(1) * x.size(3)});
}

// Repeat keys or values for every head that uses them, and sum their gradients.
at::Tensor repeated(const at::Tensor& x, std::int64_t times) {
  return x.unsqueeze(2)
      .expand({-1, -1, times, -1, -1})
      .reshape({x.size(0), x.size(1) * times, x.size(2), x.size(3)});
}
at::Tensor summed(const at::Tensor& x, std::int64_t times) {
  return x.unflatten(1, {x.size(1) / times, times}).sum(2);
}

// Only efficient attention requires as many key heads as query heads.
bool repeats_keys(AttentionKernel kernel, std::int64_t heads, std::int64_t kv_heads) {
  return kernel == AttentionKernel::efficient && heads != kv_heads;
}

HeadViews operands(AttentionKernel kernel, const at::Tensor& qkv, std::int64_t heads,
                   std::int64_t kv_heads) {
  HeadViews in = views_of(qkv, heads, kv_heads);
  if (repeats_keys(kernel, heads, kv_heads)) {
    in.k = repeated(in.k, heads / kv_heads);
    in.v = repeated(in.v, heads / kv_heads);
  }
  return in;
}

// Concatenates the gradients to [B, T, all heads].
at::Tensor concatenate(const HeadViews& grad) {
  const at::Tensor parts[3] = {grad.q.transpose(1, 2), grad.k.transpose(1, 2),
                               grad.v.transpose(1, 2)};  // [B, T, heads, d]
  const std::int64_t batch = grad.q.size(0), tokens = grad.q.size(2), dim = grad.q.size(3);
  bool dense = gpu::takes(grad.q) && dim % 8 == 0;
  std::int64_t heads = 0;
  for (const at::Tensor& part : parts) {
    dense = dense && part.is_contiguous() &&
            reinterpret_cast<std::uintptr_t>(part.const_data_ptr()) % 16 == 0;
    heads += part.size(2);
  }
  if (!dense) return at::cat({by_tokens(grad.q), by_tokens(grad.k), by_tokens(grad.v)}, 2);
  at::Tensor out = at::empty({batch, tokens, heads * dim}, grad.q.options());
  kernels::cuda::SideBySide in{.type = gpu::type_of(out),
                               .rows = count(batch * tokens),
                               .parts = {},
                               .cols = {},
                               .largest = nullptr};
  for (int i = 0; i < 3; ++i) {
    in.parts[i] = parts[i].const_data_ptr();
    in.cols[i] = count(parts[i].size(2) * dim);
  }
  const std::int64_t cols = heads * dim;
  const at::Tensor sums = at::empty({cols}, out.options().dtype(at::kFloat));
  const at::Tensor scratch = gpu::column_scratch(out, batch * tokens, cols);
  const at::Tensor largest = gpu::new_largest(out);
  in.largest = largest.defined() ? largest.mutable_data_ptr<float>() : nullptr;
  kernels::cuda::side_by_side(in, out.mutable_data_ptr(), sums.mutable_data_ptr<float>(),
                              scratch.mutable_data_ptr<float>(), gpu::stream_of(out));
  gpu::remember_statistics(out, {sums, largest});
  return out;
}

// Flash attention's arguments for a window and for documents. It takes documents one after another,
// [all tokens, heads, d], with their bounds.
struct FlashMask {
  FlashMask(const at::Tensor& qkv, const AttentionOptions* options) : longest(qkv.size(1)) {
    if (options == nullptr) return;
    if (options->window > 0) left = options->window - 1, right = 0;
    if (!options->document_starts.defined()) return;
    if (!options->document_bounds.defined()) {
      throw UsageError(
          "Attention on a GPU got document starts without their bounds. Set the documents of the "
          "pass with nn::with_documents.");
    }
    bounds = options->document_bounds;
    longest = options->longest_document;
  }
  // Converts [B, heads, T, d] to the layout of flash attention.
  at::Tensor in(const at::Tensor& x) const {
    const at::Tensor by_token = x.transpose(1, 2);
    return bounds ? by_token.reshape({-1, x.size(1), x.size(3)}) : by_token;
  }
  std::optional<at::Tensor> bounds;
  std::optional<std::int64_t> left, right;
  std::int64_t longest;
};

AttentionChoice torch_choice(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  // Chooses as if gradients were recorded.
  const at::AutoGradMode recording(true);
  HeadViews in = views_of(qkv.detach(), heads, kv_heads);
  in.q.requires_grad_();
  switch (static_cast<at::SDPBackend>(
      at::_fused_sdp_choice(in.q, in.k, in.v, {}, 0.0, true, {}, heads != kv_heads))) {
    case at::SDPBackend::cudnn_attention:
      return {AttentionKernel::cudnn, "torch prefers cuDNN attention on this GPU"};
    case at::SDPBackend::flash_attention:
      return {AttentionKernel::flash, "torch prefers flash attention among the enabled kernels"};
    case at::SDPBackend::efficient_attention:
      return {AttentionKernel::efficient, "torch cannot use the other kernels on this GPU"};
    default: return {AttentionKernel::none, "torch has no usable kernel on this GPU"};
  }
}

}  // namespace

const char* name(AttentionKernel kernel) {
  switch (kernel) {
    case AttentionKernel::cudnn: return "cudnn";
    case AttentionKernel::flash: return "flash";
    case AttentionKernel::efficient: return "efficient";
    case AttentionKernel::none: return "none";
    case AttentionKernel::flash_masked: return "flash with a mask";
  }
  return "?";
}

AttentionChoice attention_kernel(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                                 const AttentionOptions& options) {
  if (!qkv.is_cuda()) return {AttentionKernel::none, "the tensor is not on a GPU"};
  if (qkv.numel() == 0) return {AttentionKernel::none, "the tensor is empty"};
  const std::int64_t dim = qkv.size(2) / (heads + 2 * kv_heads);
  if (options.any()) {
    if (options.dropout.rate > 0) {
      return {AttentionKernel::none, "dropout uses Tessera's own masks"};
    }
    if (qkv.scalar_type() == at::kFloat) {
      return {AttentionKernel::none, "no kernel supports fp32 with a window or documents"};
    }
  } else if (qkv.scalar_type() == at::kFloat) {
    if (dim % 4 != 0) return {AttentionKernel::none, "the head width is not a multiple of 4"};
    return {AttentionKernel::efficient, "the other kernels do not support fp32"};
  }
  if (qkv.scalar_type() != at::kBFloat16 && qkv.scalar_type() != at::kHalf) {
    return {AttentionKernel::none, "the kernels support only fp32, bf16 and fp16"};
  }
  if (dim % 8 != 0) return {AttentionKernel::none, "the head width is not a multiple of 8"};
  if (!options.any()) return torch_choice(qkv, heads, kv_heads);
  // torch would not choose flash attention with a mask, but it supports these masks.
  if (dim > 256 || !at::globalContext().userEnabledFlashSDP()) {
    return {AttentionKernel::none, "flash attention is disabled, or heads are wider than 256"};
  }
  return {AttentionKernel::flash_masked, "flash attention supports windows and documents"};
}

std::vector<at::Tensor> gpu_attention_forward(AttentionKernel kernel, const at::Tensor& qkv,
                                              std::int64_t heads, std::int64_t kv_heads,
                                              const AttentionOptions* options) {
  const HeadViews in = operands(kernel, qkv, heads, kv_heads);
  switch (kernel) {
    case AttentionKernel::flash_masked: {
      const FlashMask mask(qkv, options);
      const auto r = at::_flash_attention_forward(
          mask.in(in.q), mask.in(in.k), mask.in(in.v), mask.bounds, mask.bounds, mask.longest,
          mask.longest, 0.0, /*is_causal=*/true, /*return_debug_mask=*/false,
          std::optional<double>(), mask.left, mask.right);
      return {std::get<0>(r).reshape({qkv.size(0), qkv.size(1), -1}), std::get<1>(r),
              std::get<2>(r), std::get<3>(r)};
    }
    case AttentionKernel::cudnn: {
      const auto r = at::_scaled_dot_product_cudnn_attention(
          in.q, in.k, in.v, {}, /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true);
      return {by_tokens(std::get<0>(r)), std::get<1>(r), std::get<6>(r), std::get<7>(r)};
    }
    case AttentionKernel::flash: {
      const auto r = at::_scaled_dot_product_flash_attention(in.q, in.k, in.v, 0.0,
                                                             /*is_causal=*/true);
      return {by_tokens(std::get<0>(r)), std::get<1>(r), std::get<6>(r), std::get<7>(r)};
    }
    case AttentionKernel::efficient: {
      const auto r = at::_scaled_dot_product_efficient_attention(
          in.q, in.k, in.v, {}, /*compute_log_sumexp=*/true, 0.0, /*is_causal=*/true);
      return {by_tokens(std::get<0>(r)), std::get<1>(r), std::get<2>(r), std::get<3>(r)};
    }
    case AttentionKernel::none: break;
  }
  throw UsageError("Attention on a GPU was called without a kernel. Call nn::attention instead.");
}

at::Tensor gpu_attention_backward(AttentionKernel kernel, const at::Tensor& qkv, std::int64_t heads,
                                  std::int64_t kv_heads, const at::Tensor& dout,
                                  const std::vector<at::Tensor>& forward,
                                  const AttentionOptions* options) {
  const HeadViews in = operands(kernel, qkv, heads, kv_heads);
  const at::Tensor d = by_heads(dout, heads), out = by_heads(forward[0], heads);
  const at::Tensor &lse = forward[1], &seed = forward[2], &offset = forward[3], absent;
  const std::int64_t tokens = qkv.size(1);
  HeadViews grad;
  switch (kernel) {
    case AttentionKernel::cudnn:
      std::tie(grad.q, grad.k, grad.v) = at::_scaled_dot_product_cudnn_attention_backward(
          d, in.q, in.k, in.v, out, lse, seed, offset, absent, absent, absent, tokens, tokens, 0.0,
          /*is_causal=*/true);
      break;
    case AttentionKernel::flash:
      std::tie(grad.q, grad.k, grad.v) = at::_scaled_dot_product_flash_attention_backward(
          d, in.q, in.k, in.v, out, lse, absent, absent, tokens, tokens, 0.0, /*is_causal=*/true,
          seed, offset);
      break;
    case AttentionKernel::efficient:
      std::tie(grad.q, grad.k, grad.v, std::ignore) =
          at::_scaled_dot_product_efficient_attention_backward(
              d, in.q, in.k, in.v, absent, out, lse, seed, offset, 0.0, {true, true, true, false},
              /*is_causal=*/true);
      break;
    case AttentionKernel::flash_masked: {
      const FlashMask mask(qkv, options);
      std::tie(grad.q, grad.k, grad.v) = at::_flash_attention_backward(
          mask.in(d), mask.in(in.q), mask.in(in.k), mask.in(in.v), mask.in(out), lse,
          mask.bounds.value_or(at::Tensor()), mask.bounds.value_or(at::Tensor()), mask.longest,
          mask.longest, 0.0, /*is_causal=*/true, seed, offset, std::optional<double>(), mask.left,
          mask.right);
      for (at::Tensor* part : {&grad.q, &grad.k, &grad.v}) {
        *part = part->view({qkv.size(0), tokens, -1, part->size(-1)}).transpose(1, 2);
      }
      break;
    }
    case AttentionKernel::none:
      throw UsageError(
          "Attention on a GPU was called without a kernel. Call nn::attention instead.");
  }
  if (repeats_keys(kernel, heads, kv_heads)) {
    grad.k = summed(grad.k, heads / kv_heads);
    grad.v = summed(grad.v, heads / kv_heads);
  }
  return concatenate(grad);
}

namespace {

struct GpuAttention : public torch::autograd::Function<GpuAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, std::int64_t heads,
                            std::int64_t kv_heads, std::int64_t kernel,
                            const c10::intrusive_ptr<KeptOptions>& kept) {
    const at::Tensor x = qkv.contiguous();
    const auto results = keep_in_selective("attention", {x}, [&] {
      return gpu_attention_forward(static_cast<AttentionKernel>(kernel), x, heads, kv_heads,
                                   options_in(kept));
    });
    if (kept) ctx->saved_data["options"] = c10::IValue::make_capsule(kept);
    tensor_list saved = {x};
    saved.insert(saved.end(), results.begin(), results.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["kv_heads"] = kv_heads;
    ctx->saved_data["kernel"] = kernel;
    return results[0];
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    refuse_second_derivatives("attention");
    const auto saved = ctx->get_saved_variables();
    const auto kernel = static_cast<AttentionKernel>(ctx->saved_data["kernel"].toInt());
    const auto kept = kept_options(*ctx);
    return {gpu_attention_backward(kernel, saved[0], ctx->saved_data["heads"].toInt(),
                                   ctx->saved_data["kv_heads"].toInt(), grads[0].contiguous(),
                                   {saved.begin() + 1, saved.end()}, options_in(kept)),
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor gpu_attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                         const AttentionOptions& options) {
  if (!qkv.is_cuda()) return {};
  const std::int64_t dim = qkv.size(2) / (heads + 2 * kv_heads);
  if (qkv.numel() == 0) return qkv.narrow(2, 0, heads * dim).clone();  // also empty
  const AttentionChoice choice = attention_kernel(qkv, heads, kv_heads, options);
  if (choice.kernel == AttentionKernel::none) return {};
  return GpuAttention::apply(qkv, heads, kv_heads, static_cast<std::int64_t>(choice.kernel),
                             keep_options(options));
}

}  // namespace tessera::nn
