// The ways to compute attention. Internal, except that tests compare them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "tessera/nn/ops.h"

namespace tessera::nn {

// Options between forward and backward; null: nothing beside the causal mask.
struct KeptOptions : torch::CustomClassHolder {
  AttentionOptions options;
};
c10::intrusive_ptr<KeptOptions> keep_options(const AttentionOptions& options);
c10::intrusive_ptr<KeptOptions> kept_options(torch::autograd::AutogradContext& ctx);
const AttentionOptions* options_in(const c10::intrusive_ptr<KeptOptions>& how);

// bool [B or 1, 1, T, T]: which keys each query sees.
at::Tensor attention_mask(const AttentionOptions& options, std::int64_t tokens, c10::Device device);

// Where products of bf16 are fast, heads are brought together before them; see ops_attention.cpp.
bool gathers_heads(const at::Tensor& qkv);

// {result [B, T, C], log-sum-exp [B, heads, T]} of a contiguous qkv [B, T, 3·C].
std::vector<at::Tensor> attention_forward(const at::Tensor& qkv, std::int64_t heads, bool gather,
                                          const AttentionOptions* options = nullptr);
at::Tensor attention_backward(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& dout,
                              const at::Tensor& lse, bool gather,
                              const AttentionOptions* options = nullptr);

// [Note: attention on a GPU] One of torch's three kernels is called by name, forward and backward,
// and always leaves the statistics that backward needs: torch's own attention leaves them out where
// no gradients are recorded, as in the first run of a recomputed segment. Queries, keys and values
// are read where they lie in qkv, and the result is [B, T, C] as it comes.
enum class AttentionKernel : std::uint8_t {
  cudnn,
  flash,
  efficient,
  none,  // none of them can: torch's own attention, made of matrix products
  // Flash attention again, by the door that takes a window and documents one after another.
  flash_masked,
};
const char* name(AttentionKernel kernel);
struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::none;
  const char* why = "";
};
// Which one for a qkv [B, T, (heads + 2 · kv_heads) · d] on a GPU, and why. Depends on type, sizes,
// device and torch's settings alone.
AttentionChoice attention_kernel(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                                 const AttentionOptions& options = {});

// {result [B, T, heads · d], statistics…} of a contiguous qkv.
std::vector<at::Tensor> gpu_attention_forward(AttentionKernel kernel, const at::Tensor& qkv,
                                              std::int64_t heads, std::int64_t kv_heads,
                                              const AttentionOptions* options = nullptr);
// The gradient of qkv, from that of the result and what forward returned.
at::Tensor gpu_attention_backward(AttentionKernel kernel, const at::Tensor& qkv, std::int64_t heads,
                                  std::int64_t kv_heads, const at::Tensor& dout,
                                  const std::vector<at::Tensor>& forward,
                                  const AttentionOptions* options = nullptr);
// The whole operation. Undefined where no kernel can (or it is not on a GPU).
at::Tensor gpu_attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                         const AttentionOptions& options = {});

}  // namespace tessera::nn
