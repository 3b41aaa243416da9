// Decoding for one instruction set: see [Note: sets] in core/simd.h.
#pragma once

#include "tessera/kernels/decode.h"
#include "tessera/kernels/vectors.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels::HWY_NAMESPACE {
namespace {

// [Note: few rows] Each output element is the sum of kChains partial sums (chains) over the
// columns. The chains are always the same, so the result for one sequence does not depend on the
// others in the batch. With few rows, memory bandwidth is the limit: weights are read sequentially,
// one output after the other, and several chains hide the latency of one. From kTileRows rows on,
// the loads of x are the limit: a tile of kTileRows rows by kTileOutputs outputs is held in
// registers, one chain at a time. Each chain processes kBlock columns before the next block, so
// that these are still in the L1 cache. A tile reads several outputs' weights in parallel, a poor
// access pattern for memory, so the weights of the next tile are prefetched.
constexpr std::size_t kChains = 4;
#if HWY_TARGET == HWY_NEON || HWY_TARGET == HWY_AVX3
constexpr std::size_t kMaxRows = 4;   // the chains take 16 of 32 registers
constexpr std::size_t kTileRows = 8;  // a tile takes 24
#else
constexpr std::size_t kMaxRows = 2;
constexpr std::size_t kTileRows = 4;
#endif
constexpr std::size_t kTileOutputs = 3;
constexpr std::size_t kBlock = 768;

TESSERA_INLINE void put_output(const FewRows& in, std::size_t row, std::size_t o, float sum,
                               float* y) {
  if (in.bias != nullptr) sum += in.bias[o];
  float& to = y[row * in.out + o];
  to = in.add ? to + sum : sum;
}

template <std::size_t N, class T>
TESSERA_INLINE void few_rows_output(const FewRows& in, const T* w, std::size_t o, std::size_t row,
                                    float* y) {
  const std::size_t cols = in.in;
  const float* x[N];
  TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) x[n] = in.x + (row + n) * cols;
  F sums[kChains][N];
  TESSERA_UNROLL for (std::size_t c = 0; c < kChains; ++c) {
    TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) sums[c][n] = zero();
  }
  const auto step = [&](std::size_t i, std::size_t c, auto part) TESSERA_HERE {
    const F weights = load(w + i, part);
    TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) {
      sums[c][n] = fma(weights, load(x[n] + i, part), sums[c][n]);
    }
  };
  std::size_t i = 0;
  for (; i + kChains * lanes <= cols; i += kChains * lanes) {
    TESSERA_UNROLL for (std::size_t c = 0; c < kChains; ++c) step(i + c * lanes, c, All{});
  }
  for (; i + lanes <= cols; i += lanes) step(i, 0, All{});
  if (i < cols) step(i, 0, Some{cols - i});
  TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) {
    put_output(in, row + n, o, add_across((sums[0][n] + sums[1][n]) + (sums[2][n] + sums[3][n])),
               y);
  }
}

// Computes add_across of each of `count` vectors, with the same bits.
TESSERA_INLINE void add_across_each(const F* from, std::size_t count, float* to) {
  std::size_t n = 0;
  if constexpr (lanes == 4) {
    for (; n + 4 <= count; n += 4) {
      float square[16];
      TESSERA_UNROLL for (std::size_t k = 0; k < 4; ++k) store(square + 4 * k, from[n + k]);
      F a, b, c, d;  // its columns
      hn::LoadInterleaved4(floats, square, a, b, c, d);
      store(to + n, (a + c) + (b + d));
    }
  }
  for (; n < count; ++n) to[n] = add_across(from[n]);
}

// Computes outputs [o, o + kTileOutputs) of rows [row, row + kTileRows). `prefetch` also fetches
// the same number of weights behind these.
template <bool prefetch, class T>
TESSERA_INLINE void few_rows_tile(const FewRows& in, const T* weight, std::size_t o,
                                  std::size_t row, float* y) {
  constexpr std::size_t kStride = kChains * lanes, kCount = kTileRows * kTileOutputs;
  const std::size_t cols = in.in, whole = cols / kStride * kStride;
  const float* x = in.x + row * cols;
  const T* w = weight + o * cols;
  const char* next = reinterpret_cast<const char*>(w + kTileOutputs * cols);
  F chains[kChains][kCount];
  for (auto& chain : chains) {
    for (F& sum : chain) sum = zero();
  }
  // Processes columns from, from + by, … below `to` for one chain.
  const auto pass = [&](F* chain, std::size_t from, std::size_t to, std::size_t by, auto part)
                        TESSERA_HERE {
                          F sums[kTileRows][kTileOutputs];
                          TESSERA_UNROLL for (std::size_t r = 0; r < kTileRows; ++r) {
                            TESSERA_UNROLL for (std::size_t k = 0; k < kTileOutputs; ++k) {
                              sums[r][k] = chain[r * kTileOutputs + k];
                            }
                          }
                          for (std::size_t i = from; i < to; i += by) {
                            if constexpr (prefetch) {
                              __builtin_prefetch(next);
                              next += kTileOutputs * lanes * sizeof(T);
                            }
                            F weights[kTileOutputs];
                            TESSERA_UNROLL for (std::size_t k = 0; k < kTileOutputs; ++k) {
                              weights[k] = load(w + k * cols + i, part);
                            }
                            TESSERA_UNROLL for (std::size_t r = 0; r < kTileRows; ++r) {
                              const F value = load(x + r * cols + i, part);
                              TESSERA_UNROLL for (std::size_t k = 0; k < kTileOutputs; ++k) {
                                sums[r][k] = fma(weights[k], value, sums[r][k]);
                              }
                            }
                          }
                          TESSERA_UNROLL for (std::size_t r = 0; r < kTileRows; ++r) {
                            TESSERA_UNROLL for (std::size_t k = 0; k < kTileOutputs; ++k) {
                              chain[r * kTileOutputs + k] = sums[r][k];
                            }
                          }
                        };
  for (std::size_t from = 0; from < whole; from += kBlock) {
    const std::size_t to = from + kBlock < whole ? from + kBlock : whole;
    for (std::size_t c = 0; c < kChains; ++c) pass(chains[c], from + c * lanes, to, kStride, All{});
  }
  const std::size_t vectors = cols / lanes * lanes;
  pass(chains[0], whole, vectors, lanes, All{});
  if (vectors < cols) pass(chains[0], vectors, cols, lanes, Some{cols - vectors});

  F sums[kCount];
  for (std::size_t n = 0; n < kCount; ++n) {
    sums[n] = (chains[0][n] + chains[1][n]) + (chains[2][n] + chains[3][n]);
  }
  float added[kCount];
  add_across_each(sums, kCount, added);
  for (std::size_t r = 0; r < kTileRows; ++r) {
    for (std::size_t k = 0; k < kTileOutputs; ++k) {
      put_output(in, row + r, o + k, added[r * kTileOutputs + k], y);
    }
  }
}

template <class T>
void few_rows_linear(const FewRows& in, const T* weight, float* y, std::size_t first,
                     std::size_t last) {
  const std::size_t tiled = in.rows / kTileRows * kTileRows;
  std::size_t done = first;  // end of the outputs whose first `tiled` rows are computed
  if (tiled > 0) {
    for (; done + kTileOutputs <= last; done += kTileOutputs) {
      few_rows_tile<true>(in, weight, done, 0, y);
      for (std::size_t row = kTileRows; row < tiled; row += kTileRows) {
        few_rows_tile<false>(in, weight, done, row, y);
      }
    }
  }
  for (std::size_t o = tiled == in.rows ? done : first; o < last; ++o) {
    const T* w = weight + o * in.in;
    std::size_t row = o < done ? tiled : 0;
    for (; row + kMaxRows <= in.rows; row += kMaxRows) {
      few_rows_output<kMaxRows>(in, w, o, row, y);
    }
    if (row + 2 <= in.rows) {
      few_rows_output<2>(in, w, o, row, y);
      row += 2;
    }
    if (row < in.rows) few_rows_output<1>(in, w, o, row, y);
  }
}

void few_rows_linear(const FewRows& in, float* y, std::size_t first, std::size_t last) {
  if (in.type == Type::f32) {
    few_rows_linear(in, static_cast<const float*>(in.weight), y, first, last);
  } else {
    few_rows_linear(in, static_cast<const std::uint16_t*>(in.weight), y, first, last);
  }
}

// Computes the scores of N consecutive keys, with one chain per key.
template <std::size_t N, class T>
TESSERA_INLINE void scores_of(const float* q, const T* k, std::size_t dim, float scale,
                              float* scores) {
  F sums[N];
  TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) sums[n] = zero();
  const auto step = [&](std::size_t i, auto part) TESSERA_HERE {
    const F query = load(q + i, part);
    TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) {
      sums[n] = fma(query, load(k + n * dim + i, part), sums[n]);
    }
  };
  std::size_t i = 0;
  for (; i + lanes <= dim; i += lanes) step(i, All{});
  if (i < dim) step(i, Some{dim - i});
  TESSERA_UNROLL for (std::size_t n = 0; n < N; ++n) scores[n] = scale * add_across(sums[n]);
}

// Computes elements [at, at + M vectors) of the weighted sum of values.
template <std::size_t M, class T>
TESSERA_INLINE void weighted_values(const CachedAttention& in, const float* scores, float by,
                                    std::size_t at, float* out) {
  F sums[M];
  TESSERA_UNROLL for (std::size_t m = 0; m < M; ++m) sums[m] = zero();
  const T* v = static_cast<const T*>(in.v) + at;
  for (std::size_t t = 0; t < in.tokens; ++t, v += in.dim) {
    const F share = splat(scores[t]);
    TESSERA_UNROLL for (std::size_t m = 0; m < M; ++m) {
      sums[m] = fma(share, load(v + m * lanes), sums[m]);
    }
  }
  TESSERA_UNROLL for (std::size_t m = 0; m < M; ++m) store(out + at + m * lanes, sums[m] * by);
}

// Calls x = work(x) on each vector of n elements.
template <class Work>
TESSERA_INLINE void update_each(float* x, std::size_t n, Work&& work) {
  each_vector(
      n, [&](std::size_t i, auto part) TESSERA_HERE { return load(x + i, part); }, work,
      [&](std::size_t i, F out, auto part) TESSERA_HERE { store(x + i, out, part); });
}

void silu(float* x, std::size_t n) {
  update_each(x, n, [&](F in) TESSERA_HERE { return in / (1.0f + exp(zero() - in)); });
}

// tanh(u) = 1 - 2 / (1 + exp(2u)).
void soft_cap(float* x, float cap, std::size_t n) {
  update_each(
      x, n, [&](F in) TESSERA_HERE { return (1.0f - 2.0f / (1.0f + exp(in * (2 / cap)))) * cap; });
}

template <class T>
void cached_attention_of(const CachedAttention& in, float* scores, float* out) {
  constexpr std::size_t kKeys = 8;
  const T* k = static_cast<const T*>(in.k);
  for (std::size_t h = 0; h < in.heads; ++h) {
    const float* q = in.q + h * in.dim;
    float* to = out + h * in.dim;
    std::size_t t = 0;
    for (; t + kKeys <= in.tokens; t += kKeys) {
      scores_of<kKeys>(q, k + t * in.dim, in.dim, in.scale, scores + t);
    }
    for (; t < in.tokens; ++t) scores_of<1>(q, k + t * in.dim, in.dim, in.scale, scores + t);
    if (in.cap > 0) soft_cap(scores, in.cap, in.tokens);

    float most = scores[0];
    for (std::size_t i = 1; i < in.tokens; ++i) most = most < scores[i] ? scores[i] : most;
    F total = zero();
    // Lanes beyond the end add exp(-infinity) = 0.
    each_vector(
        in.tokens,
        [&](std::size_t i, auto part)
            TESSERA_HERE { return load(scores + i, part, -__builtin_inff()); },
        [&](F x) TESSERA_HERE { return exp_negative(x - most); },
        [&](std::size_t i, F e, auto part) TESSERA_HERE {
          store(scores + i, e, part);
          total += e;
        });
    const float sum_of_exps = add_across(total), by = 1.0f / sum_of_exps;
    if (in.lse != nullptr) in.lse[h] = most + __builtin_logf(sum_of_exps);

    constexpr std::size_t kWide = 8;
    std::size_t at = 0;
    for (; at + kWide * lanes <= in.dim; at += kWide * lanes) {
      weighted_values<kWide, T>(in, scores, by, at, to);
    }
    for (; at + lanes <= in.dim; at += lanes) weighted_values<1, T>(in, scores, by, at, to);
    for (; at < in.dim; ++at) {
      float sum = 0;
      const T* v = static_cast<const T*>(in.v) + at;
      for (std::size_t i = 0; i < in.tokens; ++i) sum += scores[i] * load_one(v + i * in.dim);
      to[at] = sum * by;
    }
  }
}

void cached_attention(const CachedAttention& in, float* scores, float* out) {
  if (in.tokens == 0) return;
  if (in.type == Type::f32) {
    cached_attention_of<float>(in, scores, out);
  } else {
    cached_attention_of<std::uint16_t>(in, scores, out);
  }
}

void rms_norm_rows(const float* x, const float* weight, float eps, std::size_t rows,
                   std::size_t cols, float* y) {
  for (std::size_t r = 0; r < rows; ++r) {
    const float* from = x + r * cols;
    float* to = y + r * cols;
    F squares = zero();
    each_vector(
        cols, [&](std::size_t i, auto part) TESSERA_HERE { return load(from + i, part); },
        Identity{},
        [&](std::size_t, F value, auto) TESSERA_HERE { squares = fma(value, value, squares); });
    const float mean = add_across(squares) / static_cast<float>(cols);
    const float scale = 1.0f / __builtin_sqrtf(mean + eps);
    each_vector(
        cols,
        [&](std::size_t i, auto part)
            TESSERA_HERE { return load(from + i, part) * scale * load(weight + i, part); },
        Identity{},
        [&](std::size_t i, F value, auto part) TESSERA_HERE { store(to + i, value, part); });
  }
}

}  // namespace
}  // namespace tessera::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
