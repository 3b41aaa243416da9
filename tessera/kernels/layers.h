#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

// Transformer operations between the matrix products. Matrices are [rows, cols], row-major and
// contiguous; vectors over the columns are fp32. Each call processes whole rows, so callers can
// split the rows among threads. Where stated, an output may alias an input (same pointer).
namespace tessera::kernels {

// y = gelu(x + bias), the tanh approximation. bias may be null; y may be x.
struct Gelu {
  Type type = Type::f32;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const float* bias = nullptr;  // [cols]
};
void gelu_forward(const Gelu& in, void* y);
// dx = dy · gelu'(x + bias); dx may be dy or x. If dbias is not null, adds the sum of dx over the
// rows to it.
void gelu_backward(const Gelu& in, const void* dy, void* dx, float* dbias);

// For each row of s = x + residual (or of x alone): y = (s - mean) · rstd · weight + bias, with
// rstd = 1 / sqrt(variance + eps). y may be x, sum may be x or residual.
struct LayerNorm {
  Type type = Type::f32;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  // may be null
  const float* weight = nullptr;   // [cols]
  const float* bias = nullptr;     // [cols]; may be null in backward
  float eps = 1e-5f;
};
// Writes s to `sum` if there is a residual. mean and rstd, [rows], are outputs that backward reads.
void layer_norm_forward(const LayerNorm& in, void* y, void* sum, float* mean, float* rstd);
// in.x must hold s; in.residual is ignored. dx = the gradient through the norm, plus `dsum` (the
// gradient that reached s on the residual path) if not null; dx may be dy or dsum. Adds the sums
// over these rows to dweight and dbias, [cols].
void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const void* dy,
                         const void* dsum, void* dx, float* dweight, float* dbias);

// Softmax of attention scores under the causal mask: row r sees its first min(first + r, cols)
// columns, except the skipped[r] at their beginning (sliding windows, packed documents).
struct CausalRows {
  Type type = Type::f32;
  std::size_t rows = 0, cols = 0;
  std::size_t first = 1;  // number of columns that row 0 sees, at least 1
  float scale = 1;        // multiplies the scores; must be greater than 0
  // One per row, at most the number of columns it sees. Null: none.
  const std::int32_t* skipped = nullptr;
  // For backward: the sum of probability · gradient of each row. Null: computed from these columns.
  // Set it if the columns are only some of those that lse includes.
  const float* delta = nullptr;
};
// Replaces scores by probabilities, 0 where masked. lse[row] = log of the sum of exp(scale ·
// score). A row that sees no column gets zeros and lse -infinity.
void softmax_causal_forward(const CausalRows& in, void* scores, float* lse);
// Takes the same scores as forward, and its lse or that over more columns. Replaces scores by the
// probabilities, and dprobs (the gradient of the probabilities) by the gradient of the scores; both
// are 0 where masked.
void softmax_causal_backward(const CausalRows& in, void* scores, void* dprobs, const float* lse);

// Cross entropy of each row of logits with its target. losses[row] = log sum exp - logit of the
// target. Replaces the row by the gradient of that loss, softmax - onehot. A negative target gives
// loss and gradient 0. Targets must be less than cols.
void cross_entropy_rows(void* logits, Type type, std::size_t rows, std::size_t cols,
                        const std::int64_t* targets, float* losses);

// Converts bf16 to fp32 (widen), and fp32 to bf16 with rounding to nearest even (narrow).
void widen(const std::uint16_t* from, float* to, std::size_t n);
void narrow(const float* from, std::uint16_t* to, std::size_t n);

// Reference implementations: double precision, one element at a time.
namespace reference {
void gelu_forward(const Gelu& in, void* y);
void gelu_backward(const Gelu& in, const void* dy, void* dx, float* dbias);
void layer_norm_forward(const LayerNorm& in, void* y, void* sum, float* mean, float* rstd);
void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const void* dy,
                         const void* dsum, void* dx, float* dweight, float* dbias);
void softmax_causal_forward(const CausalRows& in, void* scores, float* lse);
void softmax_causal_backward(const CausalRows& in, void* scores, void* dprobs, const float* lse);
void cross_entropy_rows(void* logits, Type type, std::size_t rows, std::size_t cols,
                        const std::int64_t* targets, float* losses);
}  // namespace reference

}  // namespace tessera::kernels
