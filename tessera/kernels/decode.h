#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

// Kernels for generating text one token at a time: a few rows, for which each matrix is read from
// memory once. An element of the result does not depend on the number of other rows, nor on how
// rows and outputs are split among calls.
namespace tessera::kernels {

// y[r, o] = sum over i of x[r, i] · weight[o, i] + bias[o]; if `add`, this is added to y.
struct FewRows {
  Type type = Type::f32;  // type of the weight
  std::size_t rows = 0, in = 0, out = 0;
  const float* x = nullptr;      // [rows, in]
  const void* weight = nullptr;  // [out, in]
  const float* bias = nullptr;   // [out]; may be null
  bool add = false;
};
// Computes outputs [first, last) of all rows. y is [rows, out].
void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last);

// Attention of one token to the tokens before it and itself, for the query heads that share one K/V
// head: out[h] = sum over t of softmax(score[t]) · v[t], with score[t] = scale · q[h] · k[t], or if
// there is a cap, cap · tanh(that / cap).
struct CachedAttention {
  Type type = Type::f32;  // type of keys and values
  std::size_t heads = 0;  // query heads that share these keys and values
  std::size_t dim = 0;    // head dimension
  std::size_t tokens = 0;
  const float* q = nullptr;               // [heads, dim]
  const void *k = nullptr, *v = nullptr;  // [tokens, dim]
  float scale = 1;
  float cap = 0;         // 0: none
  float* lse = nullptr;  // [heads], written: logarithm of the sum of exp(score); may be null
};
// `scores` is scratch, [tokens].
void cached_attention(const CachedAttention& in, float* scores, float* out);

// y = x / sqrt(mean(x²) + eps) · weight for each of the rows [rows, cols]; y may be x.
void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y);

// x = silu(x) over n elements.
void silu(float* x, std::size_t n);

// x = cap · tanh(x / cap) over n elements.
void soft_cap(float* x, float cap, std::size_t n);

// Reference implementations: double precision, one element at a time.
namespace reference {
void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last);
void cached_attention(const CachedAttention& in, float* scores, float* out);
void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y);
void silu(float* x, std::size_t n);
void soft_cap(float* x, float cap, std::size_t n);
}  // namespace reference

}  // namespace tessera::kernels
