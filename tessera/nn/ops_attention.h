// Implementations of attention. Internal, but tests compare them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "tessera/nn/attention_part.h"
#include "tessera/nn/ops.h"

namespace tessera::nn {

// Options saved between forward and backward. Null: only the causal mask.
struct KeptOptions : torch::CustomClassHolder {
  AttentionOptions options;
};
c10::intrusive_ptr<KeptOptions> keep_options(const AttentionOptions& options);
c10::intrusive_ptr<KeptOptions> kept_options(torch::autograd::AutogradContext& ctx);
const AttentionOptions* options_in(const c10::intrusive_ptr<KeptOptions>& kept);

// Returns a bool mask [B or 1, 1, queries, keys] of the keys that each query sees.
at::Tensor attention_mask(const AttentionOptions& options, const AttentionPart& part,
                          std::int64_t queries, std::int64_t keys, c10::Device device);

// Returns whether heads are gathered before the products, which is done where bf16 products are
// fast; see ops_attention.cpp.
bool gathers_heads(const at::Tensor& qkv);

// Operands of the algorithm for the CPU: queries [B, Tq, H, d], keys and values [B, Tk, H, d] of
// one type, bf16 only if heads are gathered. They may be views with any strides between heads,
// tokens and sequences.
struct BlockedAttention {
  at::Tensor q, k, v;
  AttentionPart part;
  const AttentionOptions* options = nullptr;  // null: only the causal mask
  bool gather = false;
};
// Writes the result, [B, Tq, H, d], and the log-sum-exp of each row, contiguous fp32 [B, H, Tq].
void attend_in_blocks(const BlockedAttention& in, const at::Tensor& out, const at::Tensor& lse);
// Writes the gradients of q, k and v. lse and delta, [B, H, Tq], are sums over all keys; delta is
// as for attention_part_backward() and may be undefined if all keys are here.
void attend_in_blocks_backward(const BlockedAttention& in, const at::Tensor& dout,
                               const at::Tensor& lse, const at::Tensor& delta,
                               const PartialGradients& grad);

// Returns {result [B, T, C], log-sum-exp [B, heads, T]} for a contiguous qkv [B, T, 3·C].
std::vector<at::Tensor> attention_forward(const at::Tensor& qkv, std::int64_t heads, bool gather,
                                          const AttentionOptions* options = nullptr);
at::Tensor attention_backward(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                              const at::Tensor& lse, bool gather,
                              const AttentionOptions* options = nullptr);

// [Note: attention on a GPU] One of torch's three kernels is called directly, in forward and in
// backward, and always returns the statistics that backward needs. (torch's attention omits them if
// no gradients are recorded, as in the first run of a recomputed segment.) Queries, keys and values
// are read in place from qkv, and the result is [B, T, C] without a copy.
enum class AttentionKernel : std::uint8_t {
  cudnn,
  flash,
  efficient,
  none,  // no kernel supports it: torch's attention by matrix products
  // Flash attention through the entry point that takes a window and packed documents.
  flash_masked,
};
const char* name(AttentionKernel kernel);
struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::none;
  const char* why = "";
};
// Chooses the kernel for a qkv [B, T, (heads + 2 · kv_heads) · d] on a GPU, with the reason.
// Depends only on type, sizes, device and torch's settings.
AttentionChoice attention_kernel(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                                 const AttentionOptions& options = {});

// Returns {result [B, T, heads · d], statistics…} for a contiguous qkv.
std::vector<at::Tensor> gpu_attention_forward(AttentionKernel kernel, const at::Tensor& qkv,
                                              std::int64_t heads, std::int64_t kv_heads,
                                              const AttentionOptions* options = nullptr);
// Returns the gradient of qkv, given that of the result and the tensors that forward returned.
at::Tensor gpu_attention_backward(AttentionKernel kernel, const at::Tensor& qkv, std::int64_t heads,
                                  std::int64_t kv_heads, const at::Tensor& dout,
                                  const std::vector<at::Tensor>& forward,
                                  const AttentionOptions* options = nullptr);
// Runs attention with autograd. Returns an undefined tensor if no kernel supports it (or qkv is not
// on a GPU).
at::Tensor gpu_attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                         const AttentionOptions& options = {});

}  // namespace tessera::nn
