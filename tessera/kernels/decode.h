#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/kernels/types.h"

// A transformer that continues texts a token at a time: matrices are read from memory once, for a
// few rows. What an element of the result is does not depend on how many other rows there are, nor
// on how rows and outputs are shared out among calls.
namespace tessera::kernels {

// y[r, o] = sum over i of x[r, i] · weight[o, i] + bias[o], plus what is in y already if `add`.
struct FewRows {
  Type type = Type::f32;  // of the weight
  std::size_t rows = 0, in = 0, out = 0;
  const float* x = nullptr;      // [rows, in]
  const void* weight = nullptr;  // [out, in]
  const float* bias = nullptr;   // [out]; may be null
  bool add = false;
};
// Outputs [first, last) of all rows. y is [rows, out].
void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last);

// Attention of one token to those before it and itself, for the heads that share keys and values:
// out[h] = sum over t of softmax(scale · q[h] · k[t]) · v[t].
struct CachedAttention {
  Type type = Type::f32;  // of keys and values
  std::size_t heads = 0;  // that share them
  std::size_t dim = 0;    // of a head
  std::size_t tokens = 0;
  const float* q = nullptr;               // [heads, dim]
  const void *k = nullptr, *v = nullptr;  // [tokens, dim]
  float scale = 1;
};
// `scores` is scratch, [tokens].
void cached_attention(const CachedAttention& in, float* scores, float* out);

// y = x / sqrt(mean(x²) + eps) · weight for each of the rows [rows, cols]; y may be x.
void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y);

// y = silu(gate) · value over n elements; y may be either.
void silu_product(const float* gate, const float* value, std::size_t n, float* y);

// The same in double precision, one element after another.
namespace reference {
void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last);
void cached_attention(const CachedAttention& in, float* scores, float* out);
void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y);
void silu_product(const float* gate, const float* value, std::size_t n, float* y);
}  // namespace reference

}  // namespace tessera::kernels
