// Softmax and cross entropy for one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "tessera/kernels/layers.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

template <class T>
TESSERA_INLINE float row_max(const T* row, std::size_t n) {
  // Four independent maxima, so that no comparison waits for the previous one.
  F best[4];
  for (F& b : best) b = splat(minus_infinity);
  std::size_t at = 0;
  for (; at + 4 * lanes <= n; at += 4 * lanes) {
    TESSERA_UNROLL for (std::size_t k = 0; k < 4; ++k) {
      best[k] = max(best[k], load(row + at + k * lanes));
    }
  }
  for (; at < n; at += lanes) {
    const F x = at + lanes <= n ? load(row + at) : load(row + at, Some{n - at}, minus_infinity);
    best[0] = max(best[0], x);
  }
  return max_across(max(max(best[0], best[1]), max(best[2], best[3])));
}

// get and put functions of each_vector for one row.
template <class T>
TESSERA_INLINE auto reader(const T* row, float fill = 0) {
  return [row, fill](std::size_t i, auto part) TESSERA_HERE { return load(row + i, part, fill); };
}
template <class T>
TESSERA_INLINE auto writer(T* row) {
  return [row](std::size_t i, F x, auto part) TESSERA_HERE { store(row + i, x, part); };
}
template <class T>
TESSERA_INLINE void scale_row(T* row, std::size_t n, float factor) {
  each_vector(
      n, reader(row), [&](F x) TESSERA_HERE { return x * factor; }, writer(row));
}

// Replaces the row by exp(scale · x - top) / sum, where `top` is the maximum of scale · x and the
// sum is over the row. Returns the logarithm of the sum of exp(scale · x), -infinity for an empty
// row. bf16 rows are rounded only once, so their exponentials are computed twice.
template <class T>
TESSERA_INLINE float softmax_row(T* row, std::size_t n, float scale) {
  const float top = row_max(row, n) * scale;
  const auto power = [&](F x) TESSERA_HERE { return exp_negative(fma(x, scale, splat(-top))); };
  F total = zero();
  if constexpr (std::is_same_v<T, float>) {
    each_vector(n, reader(row, minus_infinity), power,
                [&](std::size_t i, F e, auto part) TESSERA_HERE {
                  total += e;
                  store(row + i, e, part);
                });
    const float sum = add_across(total);
    scale_row(row, n, 1.0f / sum);
    return top + std::log(sum);
  } else {
    each_vector(n, reader(row, minus_infinity), power,
                [&](std::size_t, F e, auto) TESSERA_HERE { total += e; });
    const float log_sum = top + std::log(add_across(total));
    each_vector(
        n, reader(row),
        [&](F x) TESSERA_HERE { return exp_negative(fma(x, scale, splat(-log_sum))); },
        writer(row));
    return log_sum;
  }
}

template <class T>
TESSERA_INLINE void clear(T* row, std::size_t from, std::size_t to) {
  if (from < to) __builtin_memset(row + from, 0, (to - from) * sizeof(T));
}

TESSERA_INLINE std::size_t seen(const CausalRows& in, std::size_t row) {
  const std::size_t n = in.first + row;
  return n < in.cols ? n : in.cols;
}

TESSERA_INLINE std::size_t skipped(const CausalRows& in, std::size_t row) {
  return in.skipped == nullptr ? 0 : static_cast<std::size_t>(in.skipped[row]);
}

template <class T>
void softmax_causal_forward(const CausalRows& in, T* scores, float* lse) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    T* row = scores + r * in.cols;
    const std::size_t n = seen(in, r), begin = skipped(in, r);
    lse[r] = softmax_row(row + begin, n - begin, in.scale);
    clear(row, 0, begin);
    clear(row, n, in.cols);
  }
}

// ds = scale · p · (dp - delta), with delta = Σ p · dp.
template <class T>
void softmax_causal_backward(const CausalRows& in, T* scores, T* dprobs, const float* lse) {
  for (std::size_t r = 0; r < in.rows; ++r) {
    const std::size_t begin = skipped(in, r), n = seen(in, r) - begin;
    T* p = scores + r * in.cols;
    T* d = dprobs + r * in.cols;
    clear(p, 0, begin);
    clear(d, 0, begin);
    p += begin, d += begin;
    const float log_sum = lse[r];
    F total = zero();
    // A score of 0 beyond the end would give exp(-log_sum), which is infinite if all scores are
    // below -88, and infinity times the gradient's 0 is NaN.
    each_vector(
        n,
        [&](std::size_t i, auto part) TESSERA_HERE {
          return F2{load(p + i, part, minus_infinity), load(d + i, part)};
        },
        [&](F2 f) TESSERA_HERE {
          return F2{exp(fma(f.a, in.scale, splat(-log_sum))), f.b};
        },
        [&](std::size_t i, F2 f, auto part) TESSERA_HERE {
          total = fma(f.a, f.b, total);  // 0 beyond the end
          store(p + i, f.a, part);
        });
    const float shift = in.delta == nullptr ? add_across(total) : in.delta[r];
    each_vector(
        n,
        [&](std::size_t i, auto part) TESSERA_HERE {
          return F2{load(p + i, part), load(d + i, part)};
        },
        [&](F2 f) TESSERA_HERE { return f.a * (f.b - shift) * in.scale; }, writer(d));
    clear(p, n, in.cols - begin);
    clear(d, n, in.cols - begin);
  }
}

template <class T>
float cross_entropy_row(T* row, std::size_t n, std::size_t target) {
  const float logit = load_one(row + target);
  const float log_sum = softmax_row(row, n, 1.0f);
  // If p was rounded to bf16 when it was stored, p - 1 loses its digits where p is close to 1. In
  // fp32 the error is smaller than that of the logits' own rounding.
  const float gradient =
      std::is_same_v<T, float> ? load_one(row + target) - 1.0f : std::expm1(logit - log_sum);
  store(row + target, splat(gradient), Some{1});
  return log_sum - logit;
}

template <class T>
void cross_entropy_rows(T* logits, std::size_t rows, std::size_t cols, const std::int64_t* targets,
                        float* losses) {
  for (std::size_t r = 0; r < rows; ++r) {
    T* row = logits + r * cols;
    if (targets[r] < 0) {
      losses[r] = 0;
      clear(row, 0, cols);
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
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
