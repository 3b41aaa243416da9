// Reference kernels of decode.h, one element at a time and in double precision. Tests compare the
// fast kernels with them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/core/half.h"
#include "tessera/kernels/decode.h"

namespace tessera::kernels::reference {
namespace {

double element_of(const void* from, Type type, std::size_t i) {
  return type == Type::f32 ? static_cast<const float*>(from)[i]
                           : from_bf16(static_cast<const std::uint16_t*>(from)[i]);
}

}  // namespace

void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    for (std::size_t o = first; o < last; ++o) {
      double sum = in.bias != nullptr ? in.bias[o] : 0;
      for (std::size_t i = 0; i < in.in; ++i) {
        sum += in.x[r * in.in + i] * element_of(in.weight, in.type, o * in.in + i);
      }
      float& to = y[r * in.out + o];
      to = static_cast<float>(in.add ? to + sum : sum);
    }
  }
}

void cached_attention(const CachedAttention& in, float* /*scores*/, float* out) {
  if (in.tokens == 0) return;
  for (std::size_t h = 0; h < in.heads; ++h) {
    std::vector<double> scores(in.tokens, 0);
    for (std::size_t t = 0; t < in.tokens; ++t) {
      for (std::size_t i = 0; i < in.dim; ++i) {
        scores[t] += in.q[h * in.dim + i] * element_of(in.k, in.type, t * in.dim + i);
      }
      scores[t] *= in.scale;
      if (in.cap > 0) scores[t] = in.cap * std::tanh(scores[t] / in.cap);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& score : scores) total += score = std::exp(score - most);
    if (in.lse != nullptr) in.lse[h] = static_cast<float>(most + std::log(total));
    for (std::size_t i = 0; i < in.dim; ++i) {
      double sum = 0;
      for (std::size_t t = 0; t < in.tokens; ++t) {
        sum += scores[t] / total * element_of(in.v, in.type, t * in.dim + i);
      }
      out[h * in.dim + i] = static_cast<float>(sum);
    }
  }
}

void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y) {
  for (std::size_t r = 0; r < rows; ++r) {
    double squares = 0;
    for (std::size_t i = 0; i < cols; ++i) squares += double{x[r * cols + i]} * x[r * cols + i];
    const double scale = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
    for (std::size_t i = 0; i < cols; ++i) {
      y[r * cols + i] = static_cast<float>(x[r * cols + i] * scale * weight[i]);
    }
  }
}

void silu(float* x, std::size_t n) {
  for (; n > 0; --n, ++x) *x = static_cast<float>(*x / (1 + std::exp(-double{*x})));
}

void soft_cap(float* x, float cap, std::size_t n) {
  for (; n > 0; --n, ++x) *x = static_cast<float>(cap * std::tanh(double{*x} / cap));
}

}  // namespace tessera::kernels::reference
