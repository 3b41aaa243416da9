#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::nn {

struct AttentionOptions;

// Attention of consecutive queries to consecutive keys of the same sequences, for algorithms that
// hold or process a sequence in parts and combine the results. None of these functions records
// gradients. q is [B, Tq, H, d]; k and v are [B, Tk, KV heads, d], and H / KV heads consecutive
// heads of queries use the same keys and values.
//
// fp32 and bf16 on the CPU run Tessera's kernels. Everything else runs ATen's operations, which
// compute the scores of all queries and keys at once, in fp32 (in double for double); if scores are
// capped, those of 128 queries at a time.

// Positions of the queries and keys in the whole sequences. Document starts, [B, tokens], and the
// dropped probabilities are those of the whole sequences.
struct AttentionPart {
  std::int64_t first_query = 0;  // position of query 0
  std::int64_t first_key = 0;    // position of key 0; at most first_query
  std::int64_t tokens = 0;       // length of a whole sequence
};

// Returns whether any query may see any key. Where it returns false, results and gradients are 0.
bool sees_keys(const AttentionPart& part, std::int64_t queries, std::int64_t keys,
               const AttentionOptions& options);

// Result over these keys only.
struct PartialAttention {
  // [B, Tq, H, d]: softmax over these keys, times the values; 0 for a query that sees none of them.
  // Has the type of q or a wider one, in which it was computed.
  at::Tensor out;
  // [B, H, Tq]: logarithm of the sum of exp(score) over these keys; -infinity if a query sees none.
  // fp32, or double for double.
  at::Tensor lse;
};
PartialAttention attention_part_forward(const at::Tensor& q, const at::Tensor& k,
                                        const at::Tensor& v, const AttentionPart& part,
                                        const AttentionOptions& options);

// Gradients that these queries and keys contribute, in the type of q or wider.
struct PartialGradients {
  at::Tensor q, k, v;
};
// lse: over all keys of the whole sequence. delta [B, H, Tq], of its type: the sum of dout · out
// over the head width, where out is the result over all keys. It equals the sum of probability ·
// its gradient over all keys, which the gradient of a softmax subtracts.
PartialGradients attention_part_backward(const at::Tensor& q, const at::Tensor& k,
                                         const at::Tensor& v, const at::Tensor& dout,
                                         const at::Tensor& lse, const at::Tensor& delta,
                                         const AttentionPart& part,
                                         const AttentionOptions& options);

// Same by ATen's operations for all types. Slow; tests compare the kernels with it.
PartialAttention masked_attention_forward(const at::Tensor& q, const at::Tensor& k,
                                          const at::Tensor& v, const AttentionPart& part,
                                          const AttentionOptions& options);
PartialGradients masked_attention_backward(const at::Tensor& q, const at::Tensor& k,
                                           const at::Tensor& v, const at::Tensor& dout,
                                           const at::Tensor& lse, const at::Tensor& delta,
                                           const AttentionPart& part,
                                           const AttentionOptions& options);

}  // namespace tessera::nn
