// Both ways to compute attention. Internal, except that tests compare them.
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

}  // namespace tessera::nn
