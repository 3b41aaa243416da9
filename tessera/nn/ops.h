#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/nn/pass.h"

// The operations of a transformer as functions with gradients. On the CPU (fp32 and bf16) and on a
// GPU (fp16 too) they run on our fused kernels, if these were built; other devices and types on
// what ATen has, with the same meaning. All weights are [out, in], as in torch::nn::Linear. N is
// the number of rows: the product of all dims but the last.
//
// Each says what it keeps for backward ("saves"): e is the bytes of an element of the activations.
// Inputs that the caller keeps anyway (parameters, another operation's output) are marked (shared).
namespace tessera::nn {

// x · wᵀ + b. b may be undefined. saves: x (shared; not if w is frozen), w (shared).
at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

// The tanh approximation, of x + b if b is defined. saves: x, N·cols·e, and b (shared).
at::Tensor gelu(const at::Tensor& x, const at::Tensor& b = {});
// Does adding b inside GELU's own passes cost nothing? Elsewhere a linear adds it better.
bool gelu_adds_bias(const at::Tensor& x);

// gelu(x · wᵀ + b) with the bias and its gradient inside GELU's own passes, where they can be.
// saves: x (shared), w, b (shared), and x · wᵀ: N·out·e.
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b);

// Over the last dim. w and b may be fp32 where x is bf16.
// saves: x (shared), w (shared), mean and 1/deviation of each row: 8·N bytes.
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                      double eps = 1e-5);

// {layer_norm(x + r), x + r}. saves: x + r, N·cols·e (shared if it is used further), w (shared) and
// 8·N bytes; neither x nor r.
std::pair<at::Tensor, at::Tensor> add_layer_norm(const at::Tensor& x, const at::Tensor& r,
                                                 const at::Tensor& w, const at::Tensor& b,
                                                 double eps = 1e-5);

// A norm over the last dim: LayerNorm where there is a bias, else RMSNorm.
struct NormWeights {
  at::Tensor weight, bias;
  double eps = 1e-5;
  bool of_one_type() const { return !bias.defined() || bias.scalar_type() == weight.scalar_type(); }
};
at::Tensor norm(const at::Tensor& x, const NormWeights& how);
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& r,
                                           const NormWeights& how);  // as add_layer_norm

// [Note: fused layers] What follows takes a norm or an activation function together with the linear
// layer behind it. On a GPU what lies between the two is not kept but computed again in a pass over
// memory that backward makes anyway: a transformer's block keeps a third less, no matrix product
// runs twice, and residuals are added by the products. Elsewhere they are the operations one after
// the other. `residual` has the shape of the result and its gradient passes through.
bool fuses(const at::Tensor& x);  // do they, on this tensor?
// {norm(x) · wᵀ + b, x}. The second is x for whoever reads it next: its gradient is then added
// inside the norm's own backward. saves: x (shared), 8·N bytes (RMSNorm: 4·N), w, b (shared).
std::pair<at::Tensor, at::Tensor> norm_linear(const at::Tensor& x, const NormWeights& norm,
                                              const at::Tensor& w, const at::Tensor& b);
// x · wᵀ + b + residual. saves: as linear.
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                      const at::Tensor& residual);
// gelu(x + before) · wᵀ + b + residual. saves: x, N·cols·e.
at::Tensor gelu_linear(const at::Tensor& x, const at::Tensor& before, const at::Tensor& w,
                       const at::Tensor& b, const at::Tensor& residual);
// swiglu(x) · wᵀ + b + residual. saves: x, N·cols·e.
at::Tensor swiglu_linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b,
                         const at::Tensor& residual);

// Causal self-attention. qkv [B, T, 3·C] holds queries, keys and values side by side, each of
// `heads` heads; the result is [B, T, C]. The probabilities are computed again in backward, a block
// of queries at a time. saves: qkv, 3·N·C·e (shared with nothing), and 4·N·heads bytes.
// In selective recomputation the result (N·C·e) and these 4·N·heads bytes are kept. On a GPU the
// result is saved too (shared with the linear layer behind it).
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads);
// What a query sees beside the causal mask, and what is dropped of its probabilities.
struct AttentionOptions {
  std::int64_t window = 0;          // of keys up to the query's own; 0: all before it
  at::Tensor document_starts = {};  // int32 [B, T] as in Pass; undefined: one document
  at::Tensor document_bounds = {};  // int32 [documents + 1] as in Pass, for a GPU
  std::int64_t longest_document = 0;
  Dropout dropout = {};
  std::int64_t first_head = 0;  // of these, in the whole model
  // Factor of the scores; 0: 1 / sqrt(width of a head). With another one, or with a cap, the scores
  // are computed by ATen's operations and kept for backward: 4·B·heads·T² bytes and more.
  double scale = 0;
  double cap = 0;  // c: scores become c · tanh(score / c) before the mask; 0: they stay

  bool any() const { return window > 0 || document_starts.defined() || dropout.rate > 0; }
};
// Grouped-query attention: qkv [B, T, (heads + 2·kv_heads)·d], and heads / kv_heads heads in a row
// use the same keys and values. saves besides: these repeated, 3·N·C·e (until backward); on a GPU
// nothing is repeated but for fp32, and that not kept.
at::Tensor attention(const at::Tensor& qkv, std::int64_t heads, std::int64_t kv_heads,
                     const AttentionOptions& options = {});

// x [B, rows, cols], each value times 0 or 1 / (1 - rate): [Note: dropout] in pass.h. Row 0 of each
// sample here is row `first_row` of the whole, and column 0 is column `first_column` of rows that
// are `width` wide in the whole (0: cols). saves: nothing.
at::Tensor dropout(const at::Tensor& x, const Dropout& how, std::int64_t first_row = 0,
                   std::int64_t first_column = 0, std::int64_t width = 0);
// The same for columns [first, first + cols) of rows that are `width` wide in the whole, as a copy
// and outside autograd: its gradient is dropped likewise.
at::Tensor dropped_columns(const at::Tensor& x, const Dropout& how, std::int64_t first,
                           std::int64_t width);

// Rotary positions: the first `heads` heads of width `dim` in each token t of [B, T, ...] are
// turned, elements i and i + dim / 2 together by the angle t · rates[i], and multiplied by the
// gain. saves: nothing. A tensor that is moved in, and that nobody else has, may be turned where it
// is: on a GPU it is.
at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim,
                  const std::vector<double>& rates,  // [dim / 2], as rotary_rates() has them
                  double gain = 1);                  // as rotary_gain() has it
at::Tensor rotary(at::Tensor qkv, std::int64_t heads, std::int64_t dim, double base = 1e4);

// x / sqrt(mean(x²) + eps) · w over the last dim. saves: x (shared), w (shared), 4·N bytes.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& w, double eps = 1e-5);

// silu(first half of the columns) · second half. saves: x, N·cols·e.
at::Tensor swiglu(const at::Tensor& x);

// The sum over all rows with target >= 0 of the cross entropy of softmax(hidden · weightᵀ) with
// that target, as an fp32 scalar. hidden [..., C], weight [V, C], targets [...] int64 (-1:
// ignored). saves: hidden (shared), weight (shared), and the gradient of the logits: N·V·e. On a
// GPU the logits are never whole: saves the gradients of hidden, N·C·e, and of the weight, V·C·4
// bytes. `classes`: only so many rows of the weight are classes, the others are padding and get no
// gradient; -1: all.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight,
                                const at::Tensor& targets, std::int64_t classes = -1);

}  // namespace tessera::nn
