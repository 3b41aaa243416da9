#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "tessera/comm/group.h"
#include "tessera/core/run_options.h"
#include "tessera/core/sequence_part.h"
#include "tessera/nn/attention_options.h"

namespace tessera::context_parallel {

// [Note: context parallelism] The ranks of a group share the tokens of each sequence, cut as [Note:
// zig-zag] describes. All other operations of a transformer process each token on its own, so only
// attention communicates. e is the size of an element of the activations, C a rank's tokens B · T /
// ranks, d the head width.
//
// ulysses: an all-to-all gives each rank all tokens of heads / ranks heads, nn::attention runs, and
// another all-to-all returns the results to the ranks of their tokens. If there are fewer KV heads
// than ranks, they are repeated for the exchange. Each rank sends, in forward and in backward,
//   (ranks - 1) / ranks · C · (2 · heads + 2 · max(kv_heads, ranks)) · d · e bytes.
//
// ring: queries stay, and keys and values travel from each rank to the next, ranks - 1 times. Each
// step combines the attention to the keys that are here with that to the keys before. A query with
// scores s_j has
//   lse = log Σ exp(s_j),  p_j = exp(s_j - lse),  out = Σ p_j · v_j.
// If (out_a, lse_a) and (out_b, lse_b) are those over two sets of keys, then over both
//   weight = exp(lse_b - lse) = sigmoid(lse_b - lse_a),  lse = log(exp(lse_a) + exp(lse_b)),
//   out = out_a + weight · (out_b - out_a).
// Backward recomputes p_j from lse. The gradient of the scores needs one sum over all keys, which
// each rank computes from its own tensors:
//   dp_j = dout · v_j,  delta = Σ p_j · dp_j = dout · out,  ds_j = p_j · (dp_j - delta).
// Dropout multiplies each p_j of `out` and each dp_j by the same factor, so delta = dout · out
// still holds. In backward keys and values travel again, and their gradients travel with them, in
// fp32: those of a rank's keys start at the next rank, each rank adds its part, and their owner
// adds its own part last. Each rank sends
//   (ranks - 1) · C · 2 · kv_heads · d · e bytes in forward, and
//   (ranks - 1) · C · 2 · kv_heads · d · (e + 4) bytes in backward.
// (With double, gradients are double.) The next keys travel while a rank computes with the ones
// here. Pairs of chunks in which no query sees a key are not computed.

// Ranks that share the tokens of each sequence: [Note: context parallelism].
struct Axis {
  comm::Group group = {};
  ContextKind kind = ContextKind::ring;  // ring or ulysses

  int rank() const { return group.rank(); }
  int size() const { return group.size(); }
  // Returns this rank's part of each sequence.
  SequencePart part() const { return {rank(), size()}; }
};

// Causal self-attention whose tokens are cut over the ranks as [Note: zig-zag] describes. qkv [B, T
// / ranks, (heads + 2 · kv_heads) · d] has this rank's tokens, already rotated; the result is [B, T
// / ranks, heads · d]. `options` are as for nn::attention; document_starts are those of whole rows,
// int32 [B, T], equal on all ranks. `label` names the tensors in messages. With one rank, calls
// nn::attention. Collective. Throws UsageError if the ranks or the kind do not fit the tensor.
//
// ring saves qkv (shared), the result (shared) and 4 · B · T / ranks · heads bytes. ulysses saves
// as nn::attention does for all tokens and the rank's heads. Selective recomputation keeps the
// results of the exchanges.
at::Tensor attention(const Axis& axis, const at::Tensor& qkv, std::int64_t heads,
                     std::int64_t kv_heads, const nn::AttentionOptions& options,
                     const std::string& label);

}  // namespace tessera::context_parallel
