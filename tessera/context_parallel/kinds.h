// The two implementations of attention(). Internal. Arguments have been checked, and there are at
// least two ranks and one element.
#pragma once

#include "tessera/context_parallel/attention.h"
#include "tessera/nn/ops_attention.h"

namespace tessera::context_parallel {

at::Tensor ring_attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                          std::int64_t kv_heads, const nn::AttentionOptions& options,
                          const std::string& label);
// Returns the kernel of ring attention for a tensor on a GPU: `none`, with the reason, if no kernel
// supports it.
nn::AttentionChoice ring_kernel(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                                const nn::AttentionOptions& options);
at::Tensor ulysses_attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                             std::int64_t kv_heads, const nn::AttentionOptions& options,
                             const std::string& label);

}  // namespace tessera::context_parallel
