// The ways to compute attention. Internal, except that tests compare them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera::nn {

// Where products of bf16 are fast, heads are brought together before them; see ops_attention.cpp.
bool gathers_heads(const at::Tensor& qkv);

// {result [B, T, C], log-sum-exp [B, heads, T]} of a contiguous qkv [B, T, 3·C].
std::vector<at::Tensor> attention_forward(const at::Tensor& qkv, std::int64_t heads, bool gather);
at::Tensor attention_backward(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                              const at::Tensor& lse, bool gather);

// [Note: attention on a GPU] One of torch's three kernels is called by name, forward and backward,
// and always leaves the statistics that backward needs: torch's own attention leaves them out where
// no gradients are recorded, as in the first run of a recomputed segment. Queries, keys and values
// are read where they lie in qkv, and the result is [B, T, C] as it comes.
enum class AttentionKernel : std::uint8_t {
  cudnn,
  flash,
  efficient,
  none,  // none of them can: torch's own attention, made of matrix products
};
const char* name(AttentionKernel kernel);
struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::none;
  const char* why = "";
};
// Which one for a qkv [B, T, (heads + 2 · kv_heads) · d] on a GPU, and why. Depends on type, sizes,
// device and torch's settings alone.
AttentionChoice attention_kernel(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads);

// {result [B, T, heads · d], statistics…} of a contiguous qkv.
std::vector<at::Tensor> gpu_attention_forward(AttentionKernel kernel, const at::Tensor& qkv,
                                              std::int64_t heads, std::int64_t kv_heads);
// The gradient of qkv, from that of the result and what forward returned.
at::Tensor gpu_attention_backward(AttentionKernel kernel, const at::Tensor& qkv, std::int64_t heads,
                                  std::int64_t kv_heads, const at::Tensor& dout,
                                  const std::vector<at::Tensor>& forward);
// The whole operation. Undefined where no kernel can (or it is not on a GPU).
at::Tensor gpu_attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads);

}  // namespace tessera::nn
