// Softmax and cross entropy for one instruction set: see [Note: sets] in simd.h.
#pragma once

#include <cmath>
#include <limits>

#include "tessera/kernels/layers.h"
#include "tessera/kernels/simd.h"

namespace tessera::kernels::TESSERA_KERNEL_SET {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

template <class T>
TESSERA_INLINE float row_max(const T* row, std::size_t n) {
  // Four at once: one after another would wait for each comparison.
  F best[4];
  for (F& b : best) b = splat(minus_infinity);
  std::size_t at = 0;
  for (; at + 4 * lanes <= n; at += 4 * lanes) {
    _Pragma("GCC unroll 4") for (std::size_t k = 0; k < 4; ++k) {
      best[k] = max(best[k], load(row + at + k * lanes));
    }
  }
  each_vector(n - at, [&](std::size_t i, auto part) TESSERA_HERE {
    best[0] = max(best[0], load(row + at + i, part, minus_infinity));
  });
  return max_across(max(max(best[0], best[1]), max(best[2], best[3])));
}

template <class T>
TESSERA_INLINE void zero(T* row, std::size_t from, std::size_t to) {
  if (from < to) __builtin_memset(row + from, 0, (to - from) * sizeof(T));
}

TESSERA_INLINE std::size_t seen(const CausalRows& in, std::size_t row) {
  const std::size_t n = in.first + row;
  return n < in.cols ? n : in.cols;
}

template <class T>
void softmax_causal_forward(const CausalRows& in, T* scores, float* lse) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    T* row = scores + r * in.cols;
    const std::size_t n = seen(in, r);
    const float top = row_max(row, n) * in.scale;
    F total{};
    if constexpr (std::is_same_v<T, float>) {
      each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
        const F e = exp_negative(fma(load(row + i, part, minus_infinity), in.scale, -top));
        total += e;
        store(row + i, e, part);
      });
      const float sum = add_across(total);
      const float share = 1.0f / sum;
      each_vector(n, [&](std::size_t i, auto part)
                         TESSERA_HERE { store(row + i, load(row + i, part) * share, part); });
      lse[r] = top + std::log(sum);
    } else {  // rounded once: computed twice
      each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
        total += exp_negative(fma(load(row + i, part, minus_infinity), in.scale, -top));
      });
      const float whole = top + std::log(add_across(total));
      each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
        store(row + i, exp(fma(load(row + i, part), in.scale, -whole)), part);
      });
      lse[r] = whole;
    }
    zero(row, n, in.cols);
  }
}

// ds = scale · p · (dp - Σ p · dp).
template <class T>
void softmax_causal_backward(const CausalRows& in, T* scores, T* dprobs, const float* lse) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    T* p = scores + r * in.cols;
    T* d = dprobs + r * in.cols;
    const std::size_t n = seen(in, r);
    F total{};
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      const F prob = exp(fma(load(p + i, part), in.scale, -lse[r]));
      total = fma(prob, load(d + i, part), total);  // 0 beyond the end
      store(p + i, prob, part);
    });
    const float shift = add_across(total);
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      store(d + i, load(p + i, part) * (load(d + i, part) - shift) * in.scale, part);
    });
    zero(p, n, in.cols);
    zero(d, n, in.cols);
  }
}

template <class T>
float cross_entropy_row(T* row, std::size_t n, std::size_t target) {
  const float logit = load(row + target, Some{1})[0];
  const float top = row_max(row, n);
  F total{};
  float whole = 0;
  if constexpr (std::is_same_v<T, float>) {
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      const F e = exp_negative(load(row + i, part, minus_infinity) - top);
      total += e;
      store(row + i, e, part);
    });
    const float sum = add_across(total);
    const float share = 1.0f / sum;
    each_vector(n, [&](std::size_t i, auto part)
                       TESSERA_HERE { store(row + i, load(row + i, part) * share, part); });
    row[target] -= 1.0f;
    whole = top + std::log(sum);
  } else {
    each_vector(n, [&](std::size_t i, auto part) TESSERA_HERE {
      total += exp_negative(load(row + i, part, minus_infinity) - top);
    });
    whole = top + std::log(add_across(total));
    each_vector(n, [&](std::size_t i, auto part)
                       TESSERA_HERE { store(row + i, exp(load(row + i, part) - whole), part); });
    store(row + target, splat(std::exp(logit - whole) - 1.0f), Some{1});
  }
  return whole - logit;
}

template <class T>
void cross_entropy_rows(T* logits, std::size_t rows, std::size_t cols, const std::int64_t* targets,
                        float* losses) {
  for (std::size_t r = 0; r < rows; ++r) {
    T* row = logits + r * cols;
    if (targets[r] < 0) {
      losses[r] = 0;
      zero(row, 0, cols);
    } else {
      losses[r] = cross_entropy_row(row, cols, static_cast<std::size_t>(targets[r]));
    }
  }
}

void softmax_causal_forward(const CausalRows& in, void* scores, float* lse) {
  with_type(in.type,
            [&](auto* t) { softmax_causal_forward(in, static_cast<decltype(t)>(scores), lse); });
}

void softmax_causal_backward(const CausalRows& in, void* scores, void* dprobs, const float* lse) {
  with_type(in.type, [&](auto* t) {
    using P = decltype(t);
    softmax_causal_backward(in, static_cast<P>(scores), static_cast<P>(dprobs), lse);
  });
}

void cross_entropy_rows(void* logits, Type type, std::size_t rows, std::size_t cols,
                        const std::int64_t* targets, float* losses) {
  with_type(type, [&](auto* t) {
    cross_entropy_rows(static_cast<decltype(t)>(logits), rows, cols, targets, losses);
  });
}

}  // namespace
}  // namespace tessera::kernels::TESSERA_KERNEL_SET
