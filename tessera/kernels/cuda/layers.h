#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/cuda/cuda.h"

// Transformer operations between the matrix products, on a GPU. Matrices are [rows, cols],
// row-major and contiguous. Kernels are fast if pointers are 16-byte aligned and a row is a
// multiple of 16 bytes, and slow otherwise; norms are also slow for rows over 32 kB. Where stated,
// an output may alias an input (same pointer). The reference implementation of each is in
// tests/kernels/. Some raise *largest to the largest magnitude of an output, ignoring NaN, if
// `largest` is not null: [Note: fp8].
namespace tessera::kernels::cuda {

// Returns the minimum size of `scratch`, in floats. Sums over rows take two steps: the first leaves
// the partial sums of blocks of rows in `scratch`, the second adds them. More columns never need
// less.
std::size_t column_scratch(std::size_t rows, std::size_t cols);

// LayerNorm (or RMSNorm: not centered, no bias) over each row of s = x + residual, or of x alone:
//   y = (s - mean) · rstd · weight + bias,  rstd = 1 / sqrt(variance + eps)
struct Norm {
  DType type = DType::bf16;         // type of x, residual and the outputs
  DType weight_type = DType::bf16;  // type of weight and bias
  bool centered = true;             // false: RMSNorm, which does not access mean (may be null)
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  // may be null
  const void* weight = nullptr;    // [cols]
  const void* bias = nullptr;      // [cols]; may be null
  float eps = 1e-5f;
  float* largest = nullptr;  // of y (forward) or dx (backward)
};
// Writes s to `sum` if there is a residual. mean and rstd are [rows].
void norm_forward(const Norm& in, void* y, void* sum, float* mean, float* rstd, Stream stream);
// Recomputes y from s in in.x (in.residual is ignored) and from forward's mean and rstd.
void norm_recompute(const Norm& in, const float* mean, const float* rstd, void* y, Stream stream);
// in.x must hold s. dx = the gradient through the norm, plus dsum (may be null); dx may be dy or
// dsum. If `y` is not null, the output is recomputed into it (y must not alias another argument).
// If `dx_sums` is not null, it receives the sums of dx over the rows, [cols]. scratch:
// column_scratch(rows, 2 * cols), or column_scratch(rows, 3 * cols) with dx_sums.
void norm_backward(const Norm& in, const float* mean, const float* rstd, const void* dy,
                   const void* dsum, void* dx, void* y, Sink dweight, Sink dbias, float* dx_sums,
                   float* scratch, Stream stream);

// Tanh approximation of GELU, of x + bias (bias may be null).
struct Gelu {
  DType type = DType::bf16;
  DType bias_type = DType::bf16;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const void* bias = nullptr;  // [cols]
  float* largest = nullptr;    // of y (forward) or dx (backward)
};
void gelu_forward(const Gelu& in, void* y, Stream stream);  // y may be x
// dx = dy · gelu'(x + bias), may be dy. If `y` is not null, gelu(x + bias) is recomputed into it.
// dbias is the sum of dx over the rows. scratch: column_scratch(rows, cols), unused without dbias.
void gelu_backward(const Gelu& in, const void* dy, void* dx, void* y, Sink dbias, float* scratch,
                   Stream stream);

// x is [rows, 2 · cols], gates followed by values; y = silu(gate) · value.
struct SwiGlu {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0;  // dimensions of y
  const void* x = nullptr;
  float* largest = nullptr;  // of y (forward) or dx (backward)
};
void swiglu_forward(const SwiGlu& in, void* y, Stream stream);
// dx [rows, 2 · cols] may be x. If `y` is not null, the output is recomputed into it.
void swiglu_backward(const SwiGlu& in, const void* dy, void* dx, void* y, Stream stream);

// Rotates the first `heads` heads of width `dim` in each row of x (of `stride` elements) in place:
// elements i and i + dim / 2 together by the angle t · base^(-2i / dim), where t is the position of
// the row; if `back`, by the negative angle. Both directions multiply by the gain. Row r is token
// r % tokens of its sequence, at that position, or, if `chunk` is not 0, at position first[c] + i
// for token i of chunk c of that many tokens.
struct Rotary {
  DType type = DType::bf16;
  std::size_t rows = 0, stride = 0, tokens = 0, heads = 0, dim = 0;
  double base = 1e4;
  bool back = false;
  const double* rates = nullptr;  // [dim / 2], host memory; replaces base^(-2i / dim) if not null
  float gain = 1;
  std::size_t chunk = 0, first[2] = {};  // half of `tokens`, and the positions of two chunks
};
void rotary(const Rotary& args, void* x, Stream stream);

// out [rows, cols[0] + cols[1] + cols[2]] = three matrices concatenated along the columns. If
// `sums` is not null, it receives the sums of all these columns over the rows; scratch:
// column_scratch(rows, all columns), unused without sums.
struct SideBySide {
  DType type = DType::bf16;
  std::size_t rows = 0;
  const void* parts[3] = {};
  std::size_t cols[3] = {};
  float* largest = nullptr;
};
void side_by_side(const SideBySide& in, void* out, float* sums, float* scratch, Stream stream);

// Sum of each column of x.
struct Columns {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
};
void column_sums(const Columns& in, Sink out, float* scratch, Stream stream);
// Writes sums that are already computed to `to`.
void put_sums(const float* sums, std::size_t cols, Sink to, Stream stream);

// Cross entropy of each row of logits with its target. losses[row] = log sum exp - logit of the
// target. Replaces the row by the gradient of that loss (softmax - onehot), zero from `classes` on.
// A target of -1 gives loss and gradient 0. A target below -1 or not less than `classes` is treated
// as -1, and *bad (may be null) is set to 1 + the number of one such row.
struct CrossEntropy {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0, classes = 0;  // cols includes padding
  const std::int64_t* targets = nullptr;
};
void cross_entropy(const CrossEntropy& in, void* logits, float* losses, int* bad, Stream stream);

// The same in two steps, for ranks that each have the columns of some classes: classes [first,
// first
// + classes). For each row, shard_statistics() writes the maximum of this rank's logits to top
// (-1e38 without any), the sum of exp(logit - top) to sum, and the logit of the target to chosen (0
// if another rank has it or the target is -1). A target below -1 or not less than `all_classes` is
// treated as -1, and sets *bad as above.
struct ShardCrossEntropy {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0, classes = 0;  // cols includes padding
  std::int64_t first = 0, all_classes = 0;
  const std::int64_t* targets = nullptr;
};
void shard_statistics(const ShardCrossEntropy& in, const void* logits, float* top, float* sum,
                      float* chosen, int* bad, Stream stream);
// Given the logarithm of the sum of exp(logit) over all ranks, replaces the logits by their
// gradient as cross_entropy() does.
void shard_gradient(const ShardCrossEntropy& in, void* logits, const float* log_sum, Stream stream);

}  // namespace tessera::kernels::cuda
