// Attention of a part of a sequence on a GPU by the kernels of [Note: attention on a GPU], for
// algorithms that combine parts, as those of attention_part.h. Internal, but tests compare them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tessera/nn/attention_part.h"
#include "tessera/nn/ops_attention.h"

namespace tessera::nn {

// Kernel of a part, and the keys that its queries see.
struct GpuPart {
  AttentionKernel kernel = AttentionKernel::none;  // of attention_kernel()
  // Query i sees keys 0 to i, and there are as many keys as queries. Otherwise it sees all keys.
  bool causal = false;
  // Query i does not see the keys before i - left. -1: no limit. Other values need flash_masked.
  std::int64_t left = -1;
  double scale = 0;  // factor of the scores; 0: 1 / sqrt(head width)
};

// Result over the keys of a part, and what backward needs.
struct GpuPartResult {
  at::Tensor out;           // [B, Tq, H, d], in the type of q
  at::Tensor lse;           // fp32 [B, H, Tq]; [B, H, Tq, 1] from some versions of torch's cuDNN
  at::Tensor seed, offset;  // of the kernel's dropout, which is not used
};
// Every query must see a key. q [B, Tq, H, d]; k and v [B, Tk, KV heads, d].
GpuPartResult gpu_part_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const GpuPart& part);

// Returns the gradients that these queries and keys contribute, in the type of q. `whole` has the
// result over all keys of the sequence, not only of this part: `out`, `lse` with as many dims as
// gpu_part_forward() returns, and its `seed` and `offset`.
PartialGradients gpu_part_backward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                   const at::Tensor& dout, const GpuPartResult& whole,
                                   const GpuPart& part);

}  // namespace tessera::nn
