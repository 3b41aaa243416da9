#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/nn/attention_options.h"
#include "tessera/nn/pass.h"

// Transformer operations with gradients. On the CPU (fp32 and bf16) and on a GPU (also fp16) they
// run Tessera's fused kernels, if these were built; on other devices and types they run ATen's
// operations, with the same meaning. All weights are [out, in], as in torch::nn::Linear. N is the
// number of rows: the product of all dims but the last.
//
// Each comment lists what is kept for backward ("saves"); e is the size in bytes of an element of
// the activations. Inputs that the caller keeps anyway (parameters, outputs of other operations)
// are marked (shared).
namespace tessera::nn {

// Returns x · wᵀ + b. b may be undefined. saves: x (shared; not if w is frozen), w (shared).
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

// Returns GELU (tanh approximation) of x, or of x + b if b is defined. saves: x, N·cols·e, and b
// (shared).
at::Tensor gelu(const at::Tensor& x, const at::Tensor& b = {});
// Returns whether gelu() adds b at no extra cost. Otherwise the preceding linear should add it.
bool gelu_adds_bias(const at::Tensor& x);

// Returns gelu(x · wᵀ + b), with the bias and its gradient computed inside GELU's passes if
// possible. saves: x (shared), w, b (shared), and x · wᵀ: N·out·e.
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

// Normalizes over the last dim. w and b may be fp32 if x is bf16. saves: x (shared), w (shared),
// mean and 1/deviation of each row: 8·N bytes.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                      double eps = 1e-5);

// Returns {layer_norm(x + r), x + r}. saves: x + r, N·cols·e (shared if it is used further), w
// (shared) and 8·N bytes; neither x nor r.
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& r,
                                                 const at::Tensor& w, const at::Tensor& b,
                                                 double eps = 1e-5);

// Parameters of a norm over the last dim: LayerNorm if there is a bias, otherwise RMSNorm.
struct NormWeights {
  at::Tensor weight, bias;
  double eps = 1e-5;
  bool of_one_type() const { return !bias.defined() || bias.scalar_type() == weight.scalar_type(); }
};
at::Tensor norm(const at::Tensor& x, const NormWeights& weights);
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& r,
                                           const NormWeights& weights);  // like add_layer_norm

// Returns whether a linear and the norm or activation function before it run as one operation for
// this tensor: [Note: fused layers] in nn/operand.h.
bool fuses(const at::Tensor& x);

// Causal self-attention. qkv [B, T, 3·C] holds queries, keys and values next to each other, each
// with `heads` heads; the result is [B, T, C]. Backward recomputes the probabilities, one block of
// queries at a time. saves: qkv, 3·N·C·e (not shared), and 4·N·heads bytes. Selective recomputation
// keeps the result (N·C·e) and these 4·N·heads bytes. On a GPU the result is also saved (shared
// with the linear layer after it).
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads);
// Grouped-query attention: qkv is [B, T, (heads + 2·kv_heads)·d], and heads / kv_heads consecutive
// heads use the same keys and values. Also saves the repeated keys and values, 3·N·C·e (until
// backward); a GPU repeats them only for fp32, and does not keep them.
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& options = {});

// Multiplies each value of x [B, rows, cols] by 0 or 1 / (1 - rate): [Note: dropout] in pass.h.
// `rows`: positions of the rows of each sample in the whole sample; empty: all rows of
// options.part. Column 0 here is column `first_column` of rows that are `width` wide in the whole
// (0: cols). saves: nothing.
at::Tensor dropout(const at::Tensor& x, const Dropout& options,
                   const std::vector<TokenRange>& rows = {}, std::int64_t first_column = 0,
                   std::int64_t width = 0);
// Same for all rows of options.part and columns [first, first + cols) of rows that are `width` wide
// in the whole. Returns a copy and does not record gradients: the caller masks the gradient the
// same way.
at::Tensor dropped_columns(const at::Tensor& x, const Dropout& options, std::int64_t first,
                           std::int64_t width);

// Rotary positions: rotates the first `heads` heads of width `dim` in each token of [B, T, ...],
// elements i and i + dim / 2 together by the angle t · rates[i], and multiplies them by the gain. t
// is the position of the token in its sequence, of which `part` has T tokens.
// saves: nothing. On a GPU, a tensor that is moved in and has no other owner is rotated in place.
at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates,  // [dim / 2], see rotary_rates()
                  double gain = 1,                   // see rotary_gain()
                  const SequencePart& part = {});
at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim, double base = 1e4);

// Returns x / sqrt(mean(x²) + eps) · w over the last dim. saves: x (shared), w (shared), 4·N bytes.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps = 1e-5);

// Returns silu(first half of the columns) · second half. saves: x, N·cols·e.
at::Tensor swiglu(const at::Tensor& x);

// Returns the sum, over all rows with target >= 0, of the cross entropy of softmax(hidden ·
// weightᵀ) with that target, as an fp32 scalar. hidden [..., C], weight [V, C], targets [...] int64
// (-1: ignored). saves: hidden (shared), weight (shared), and the gradient of the logits: N·V·e. A
// GPU never holds all logits: it saves the gradients of hidden, N·C·e, and of the weight, V·C·4
// bytes. `classes`: number of rows of the weight that are classes; the others are padding and get
// no gradient. -1: all.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes = -1);

}  // namespace tessera::nn
