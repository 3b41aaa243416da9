#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

// What stands between the matrix products of a transformer. Matrices are [rows, cols], row after
// row without gaps; vectors over the columns are fp32; every call works on whole rows, so callers
// can share out the rows among threads. Outputs may be the inputs (same pointer) where said.
namespace tessera::kernels {

// y = gelu(x + bias), the tanh approximation. bias may be null; y may be x.
struct Gelu {
  Type type = Type::f32;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const float* bias = nullptr;  // [cols]
};
void gelu_forward(const Gelu& in, void* y);
// dx = dy · gelu'(x + bias); dx may be dy or x. dbias[c] += the sum of dx over the rows, if given.
void gelu_backward(const Gelu& in, const void* dy, void* dx, float* dbias);

// Over each row of s = x + residual (or of x alone): y = (s - mean) · rstd · weight + bias, with
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
// `sum` receives s if there is a residual; mean and rstd, [rows], are for backward.
void layer_norm_forward(const LayerNorm& in, void* y, void* sum, float* mean, float* rstd);
// Here in.x is s and in.residual is ignored. dx = the gradient through the norm, plus `dsum` (the
// gradient that reached s past the norm) if given; dx may be dy or dsum. dweight and dbias, [cols],
// have the sums over these rows added to them.
void layer_norm_backward(const LayerNorm& in, const float* mean, const float* rstd, const void* dy,
                         const void* dsum, void* dx, float* dweight, float* dbias);

// Attention's softmax under the causal mask: row r sees its first min(first + r, cols) columns,
// without the skipped[r] at their beginning (windows, documents).
struct CausalRows {
  Type type = Type::f32;
  std::size_t rows = 0, cols = 0;
  std::size_t first = 1;  // columns that row 0 sees, at least 1
  float scale = 1;        // multiplies the scores; greater than 0
  // Of each row, less than what it sees; null: none.
  const std::int32_t* skipped = nullptr;
};
// scores become probabilities, 0 where masked; lse[row] = log of the sum of exp(scale · score).
void softmax_causal_forward(const CausalRows& in, void* scores, float* lse);
// From the same scores and lse: scores become the probabilities again, and dprobs (the gradient of
// the probabilities) becomes that of the scores; 0 where masked.
void softmax_causal_backward(const CausalRows& in, void* scores, void* dprobs, const float* lse);

// Cross entropy of each row of logits with its target. losses[row] = log sum exp - logit of the
// target, and the row becomes the gradient of that: softmax - onehot. A target of -1 (any below 0)
// makes loss and gradient 0. Targets must be below cols.
void cross_entropy_rows(void* logits, Type type, std::size_t rows, std::size_t cols,
                        const std::int64_t* targets, float* losses);

// fp32 from bf16, and bf16 from fp32 to nearest even.
void widen(const std::uint16_t* from, float* to, std::size_t n);
void narrow(const float* from, std::uint16_t* to, std::size_t n);

// The same in double precision, one element after another.
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
