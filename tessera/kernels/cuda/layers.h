#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/cuda/cuda.h"

// What stands between the matrix products of a transformer, on a GPU. Matrices are [rows, cols],
// row after row without gaps. They are quick where they are 16-byte aligned and cols is a multiple
// of 16 bytes, slow otherwise, and for norms of rows of more than 32 kB. Outputs may be inputs (the
// same pointer) where said. The slow reference of each is in tests/kernels/.
namespace tessera::kernels::cuda {

// Sums over rows are made in two steps: blocks of rows, then the blocks. What the first leaves for
// the second is written to `scratch`, of at least so many floats. More columns never need less.
std::size_t column_scratch(std::size_t rows, std::size_t cols);

// LayerNorm (or RMSNorm: not centred, no bias) over each row of s = x + residual, or of x alone:
//   y = (s - mean) · rstd · weight + bias,  rstd = 1 / sqrt(variance + eps)
struct Norm {
  DType type = DType::bf16;         // of x, residual and what is written
  DType weight_type = DType::bf16;  // of weight and bias
  bool centred = true;              // false: RMSNorm; mean is not touched then and may be null
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  // may be null
  const void* weight = nullptr;    // [cols]
  const void* bias = nullptr;      // [cols]; may be null
  float eps = 1e-5f;
};
// `sum` receives s if there is a residual. mean and rstd are [rows].
void norm_forward(const Norm& in, void* y, void* sum, float* mean, float* rstd, Stream stream);
// y once more, from s in in.x (in.residual is ignored) and what forward has left.
void norm_again(const Norm& in, const float* mean, const float* rstd, void* y, Stream stream);
// in.x is s. dx = the gradient through the norm, plus dsum (may be null); dx may be dy or dsum.
// `y`, if not null, receives the output once more (it may not be another's place). `dx_sums`, if
// not null, receives the sums of dx over the rows, [cols]. scratch: column_scratch(rows, 2 * cols),
// with dx_sums column_scratch(rows, 3 * cols).
void norm_backward(const Norm& in, const float* mean, const float* rstd, const void* dy,
                   const void* dsum, void* dx, void* y, Sink dweight, Sink dbias, float* dx_sums,
                   float* scratch, Stream stream);

// The tanh approximation of GELU, of x + bias (bias may be null).
struct Gelu {
  DType type = DType::bf16;
  DType bias_type = DType::bf16;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
  const void* bias = nullptr;  // [cols]
};
void gelu_forward(const Gelu& in, void* y, Stream stream);  // y may be x
// dx = dy · gelu'(x + bias), may be dy. `y`, if not null, receives gelu(x + bias) once more. dbias
// is the sum of dx over the rows. scratch: column_scratch(rows, cols), unused without dbias.
void gelu_backward(const Gelu& in, const void* dy, void* dx, void* y, Sink dbias, float* scratch,
                   Stream stream);

// x is [rows, 2 · cols], gates beside values; y = silu(gate) · value.
struct SwiGlu {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0;  // of y
  const void* x = nullptr;
};
void swiglu_forward(const SwiGlu& in, void* y, Stream stream);
// dx [rows, 2 · cols] may be x. `y`, if not null, receives the output once more.
void swiglu_backward(const SwiGlu& in, const void* dy, void* dx, void* y, Stream stream);

// Turns the first `heads` heads of width `dim` in each row of x (of `stride` elements) in place:
// elements i and i + dim / 2 together by the angle t · base^(-2i / dim), where t = row % tokens; or
// back by the same angle. Both times they are multiplied by the gain.
struct Rotary {
  DType type = DType::bf16;
  std::size_t rows = 0, stride = 0, tokens = 0, heads = 0, dim = 0;
  double base = 1e4;
  bool back = false;
  const double* rates = nullptr;  // [dim / 2] on the host, in place of base^(-2i / dim)
  float gain = 1;
};
void rotary(const Rotary& how, void* x, Stream stream);

// out [rows, cols[0] + cols[1] + cols[2]] = three matrices side by side. `sums`, if not null,
// receives the sums of all these columns over the rows; scratch: column_scratch(rows, all columns),
// unused without sums.
struct SideBySide {
  DType type = DType::bf16;
  std::size_t rows = 0;
  const void* parts[3] = {};
  std::size_t cols[3] = {};
};
void side_by_side(const SideBySide& in, void* out, float* sums, float* scratch, Stream stream);

// The sum of each column of x.
struct Columns {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0;
  const void* x = nullptr;
};
void column_sums(const Columns& in, Sink out, float* scratch, Stream stream);
// Sums that are there already, to where they are wanted.
void put_sums(const float* sums, std::size_t cols, Sink to, Stream stream);

// Cross entropy of each row of logits with its target. losses[row] = log sum exp - logit of the
// target, and the row becomes the gradient of that (softmax - onehot), zero from `classes` on. A
// target of -1 makes loss and gradient 0; one below -1 or not below `classes` counts as -1, and
// *bad (may be null) becomes 1 + its row number (that of some such row).
struct CrossEntropy {
  DType type = DType::bf16;
  std::size_t rows = 0, cols = 0, classes = 0;  // cols: with padding
  const std::int64_t* targets = nullptr;
};
void cross_entropy(const CrossEntropy& in, void* logits, float* losses, int* bad, Stream stream);

}  // namespace tessera::kernels::cuda
