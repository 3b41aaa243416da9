// Operations of a decoder on the CPU. A few rows use Tessera's kernels, which read every matrix
// once. The many rows of a prompt use matrix products. Activations are fp32.

#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/core/half.h"
#include "tessera/core/index.h"
#include "tessera/kernels/decode.h"
#include "tessera/kernels/layers.h"
#include "tessera/models/decoder_ops.h"
#include "tessera/nn/parallel_for.h"

namespace tessera::models {
namespace {

using kernels::Type;

constexpr std::int64_t kFewRows = 16;  // maximum rows of a text for Tessera's kernels
constexpr std::size_t kChunk = 256;    // maximum rows that run together
constexpr std::int64_t kTile = 8;      // columns that a thread computes together

const float* floats(const at::Tensor& t) { return t.defined() ? t.data_ptr<float>() : nullptr; }
const std::uint16_t* halves(const at::Tensor& t) {
  return static_cast<const std::uint16_t*>(t.data_ptr());
}
Type type_of(const at::Tensor& t) { return t.scalar_type() == at::kFloat ? Type::f32 : Type::bf16; }

// Calls f(first, last) in parallel for ranges of whole tiles that cover the columns [0, n).
// `numbers`: elements that are processed for each column.
template <class Body>
void each_tile(std::int64_t n, std::int64_t numbers, const Body& f) {
  nn::parallel_for(0, (n + kTile - 1) / kTile, nn::grain_of(kTile * numbers),
                   [&](std::int64_t begin, std::int64_t end) {
                     f(as_size(begin * kTile), as_size(std::min(n, end * kTile)));
                   });
}

// Adds a row of a table to `to`.
void add_row(const at::Tensor& table, std::int64_t row, float* to) {
  const std::int64_t width = table.size(1);
  if (type_of(table) == Type::f32) {
    const float* const from = floats(table) + row * width;
    for (std::int64_t i = 0; i < width; ++i) to[i] += from[i];
  } else {
    const std::uint16_t* const from = halves(table) + row * width;
    for (std::int64_t i = 0; i < width; ++i) to[i] += from_bf16(from[i]);
  }
}

void activate_in_place(Activation f, float* x, std::size_t n) {
  switch (f) {
    case Activation::gelu_tanh: return kernels::gelu_forward({Type::f32, 1, n, x, nullptr}, x);
    case Activation::silu: return kernels::silu(x, n);
    case Activation::gelu:
      for (float* end = x + n; x < end; ++x) *x = 0.5f * *x * (1 + std::erf(*x * 0.70710678f));
      return;
    case Activation::relu:
      for (float* end = x + n; x < end; ++x) *x = std::max(0.0f, *x);
      return;
  }
}

class KernelOps final : public DecoderOps {
 public:
  KernelOps()
      : DecoderOps({.type = at::kFloat, .most_rows = kChunk, .most_together = as_size(kFewRows)}) {}

  void begin(std::span<const DecoderRow> rows) override {
    rows_ = rows;
    few_ = true;
    std::int64_t of_text = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      of_text = r > 0 && rows[r].slot == rows[r - 1].slot ? of_text + 1 : 1;
      few_ = few_ && of_text <= kFewRows;
    }
  }

  at::Tensor embed(const at::Tensor& table, std::int64_t first,
                   const at::Tensor& positions) override {
    at::Tensor x = at::zeros({count(), table.size(1)}, at::kFloat);
    float* to = x.data_ptr<float>();
    for (const DecoderRow& row : rows_) {
      const std::int64_t token = row.token - first;
      if (token >= 0 && token < table.size(0)) add_row(table, token, to);
      if (positions.defined()) add_row(positions, row.position, to);
      to += table.size(1);
    }
    return x;
  }

  at::Tensor norm(const at::Tensor& x, const nn::NormWeights& weights) override {
    const std::int64_t rows = x.size(0), width = x.size(1);
    at::Tensor y = at::empty({rows, width}, at::kFloat);
    std::vector<float> statistics(as_size(2 * rows));
    const auto eps = static_cast<float>(weights.eps);
    nn::parallel_for(0, rows, nn::grain_of(width), [&](std::int64_t begin, std::int64_t end) {
      const float* const from = floats(x) + begin * width;
      float* const to = y.data_ptr<float>() + begin * width;
      const std::size_t some = as_size(end - begin), cols = as_size(width);
      if (!weights.bias.defined()) {
        kernels::rms_norm_rows(from, floats(weights.weight), eps, some, cols, to);
        return;
      }
      float* const mean = statistics.data() + 2 * begin;
      kernels::layer_norm_forward(
          {Type::f32, some, cols, from, nullptr, floats(weights.weight), floats(weights.bias), eps},
          to, nullptr, mean, mean + some);
    });
    return y;
  }

  at::Tensor linear(const at::Tensor& x, const LinearWeights& weights) override {
    at::Tensor y = at::empty({x.size(0), weights.weight.size(0)}, at::kFloat);
    multiply(x, weights, y, false);
    return y;
  }
  at::Tensor add_linear(at::Tensor sum, const at::Tensor& x,
                        const LinearWeights& weights) override {
    multiply(x, weights, sum, true);
    return sum;
  }
  at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight) override {
    return linear(x, {weight, {}});
  }

  void norm_heads(const at::Tensor& qkv, std::int64_t first, std::int64_t heads,
                  const nn::NormWeights& weights) override {
    const std::int64_t dim = weights.weight.numel();
    each_row(qkv, heads * dim, [&](const DecoderRow&, float* row) {
      kernels::rms_norm_rows(row + first * dim, floats(weights.weight),
                             static_cast<float>(weights.eps), as_size(heads), as_size(dim),
                             row + first * dim);
    });
  }

  void rotate(const at::Tensor& qkv, std::int64_t heads, const at::Tensor& table) override {
    const std::int64_t dim = table.size(1), half = dim / 2;
    each_row(qkv, heads * dim, [&](const DecoderRow& row, float* head) {
      const float* const cos = floats(table) + row.position * dim;
      const float* const sin = cos + half;
      for (std::int64_t h = 0; h < heads; ++h, head += dim) {
        for (std::int64_t i = 0; i < half; ++i) {
          const float a = head[i], b = head[half + i];
          head[i] = a * cos[i] - b * sin[i];
          head[half + i] = b * cos[i] + a * sin[i];
        }
      }
    });
  }

  void remember(const at::Tensor& qkv, const KeyValueCache& cache) override;
  at::Tensor attend(const at::Tensor& qkv, const KeyValueCache& cache,
                    const ScoreOptions& options) override {
    const std::int64_t dim = cache.keys.size(3);
    const std::int64_t heads = qkv.size(1) / dim - 2 * cache.keys.size(1);
    return attend_rows(rows_, qkv, heads, cache, options, false);
  }
  at::Tensor attend_part(std::span<const DecoderRow> rows, const at::Tensor& queries,
                         const KeyValueCache& cache, const ScoreOptions& options) override {
    const std::int64_t heads = queries.size(1) / cache.keys.size(3);
    return attend_rows(rows, queries, heads, cache, options, true);
  }
  at::Tensor merge(const at::Tensor& parts, std::int64_t heads) override;

  at::Tensor activate(at::Tensor x, Activation f, bool gated) override {
    const std::int64_t rows = x.size(0), width = x.size(1) / (gated ? 2 : 1);
    each_tile(width, rows, [&](std::size_t first, std::size_t last) {
      for (std::int64_t r = 0; r < rows; ++r) {
        activate_in_place(f, x.data_ptr<float>() + r * x.size(1) + first, last - first);
      }
    });
    return gated ? x.narrow(1, 0, width).mul(x.narrow(1, width, width)) : x;
  }

  // Not ATen's, whose result for an element depends on how many there are.
  at::Tensor sigmoid(const at::Tensor& x) override {
    at::Tensor y = at::empty(x.sizes(), at::kFloat);
    std::transform(floats(x), floats(x) + x.numel(), y.data_ptr<float>(),
                   [](float value) { return 1 / (1 + std::exp(-value)); });
    return y;
  }

  at::Tensor capped(at::Tensor logits, double cap) override {
    nn::parallel_for(0, logits.numel(), nn::kGrain, [&](std::int64_t begin, std::int64_t end) {
      kernels::soft_cap(logits.data_ptr<float>() + begin, static_cast<float>(cap),
                        as_size(end - begin));
    });
    return logits;
  }

 private:
  std::int64_t count() const { return static_cast<std::int64_t>(rows_.size()); }

  // Calls f(row, its part of `matrix`) in parallel. `numbers`: elements processed for each row.
  template <class Body>
  void each_row(const at::Tensor& matrix, std::int64_t numbers, const Body& f) const {
    nn::parallel_for(0, count(), nn::grain_of(numbers), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        f(nth(rows_, r), matrix.data_ptr<float>() + r * matrix.size(1));
      }
    });
  }

  // Computes y = x · wᵀ + b, or adds that to y.
  void multiply(const at::Tensor& x, const LinearWeights& weights, at::Tensor& y, bool add) {
    const at::Tensor& weight = weights.weight;
    // A step uses the same kernels for any number of texts, so that results do not depend on it.
    if (few_ || x.size(0) <= kFewRows) {
      const kernels::FewRows what{
          type_of(weight), as_size(x.size(0)), as_size(weight.size(1)), as_size(weight.size(0)),
          floats(x),       weight.data_ptr(),  floats(weights.bias),    add};
      each_tile(weight.size(0), weight.size(1), [&](std::size_t first, std::size_t last) {
        kernels::few_rows_linear(what, y.data_ptr<float>(), first, last);
      });
      return;
    }
    if (add) {
      at::addmm_out(y, y, x, in_fp32(weight).t());
    } else {
      at::mm_out(y, x, in_fp32(weight).t());
    }
    if (weights.bias.defined()) y.add_(weights.bias);
  }

  // Attention of `heads` heads of each row to the tokens of this rank, with the log-sum-exp of each
  // head behind them if `with_lse`.
  static at::Tensor attend_rows(std::span<const DecoderRow> rows, const at::Tensor& queries,
                                std::int64_t heads, const KeyValueCache& cache,
                                const ScoreOptions& options, bool with_lse);

  at::Tensor in_fp32(const at::Tensor& weight) {
    if (type_of(weight) == Type::f32) return weight;
    if (!widened_.defined() || widened_.numel() < weight.numel()) {
      widened_ = at::empty({weight.numel()}, at::kFloat);
    }
    nn::parallel_for(0, weight.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
      kernels::widen(halves(weight) + begin, widened_.data_ptr<float>() + begin,
                     as_size(end - begin));
    });
    return widened_.narrow(0, 0, weight.numel()).view(weight.sizes());
  }

  std::span<const DecoderRow> rows_;
  bool few_ = true;     // no text has more than kFewRows rows
  at::Tensor widened_;  // copy of a matrix
};

// Returns the address of the row's token `index` of a head in the cache.
char* in_cache(const at::Tensor& tensor, const DecoderRow& row, std::int64_t head,
               std::int64_t index) {
  const std::int64_t at =
      ((row.slot * tensor.size(1) + head) * tensor.size(2) + index) * tensor.size(3);
  return static_cast<char*>(tensor.data_ptr()) +
         at * static_cast<std::int64_t>(tensor.element_size());
}

void KernelOps::remember(const at::Tensor& qkv, const KeyValueCache& cache) {
  const std::int64_t kv_heads = cache.keys.size(1), dim = cache.keys.size(3);
  const std::int64_t q_width = qkv.size(1) - 2 * kv_heads * dim;
  each_row(qkv, 2 * kv_heads * dim, [&](const DecoderRow& row, const float* from) {
    if (!cache.stripes.holds(row.position)) return;
    from += q_width;
    for (const at::Tensor& tensor : {cache.keys, cache.values}) {
      for (std::int64_t head = 0; head < kv_heads; ++head, from += dim) {
        char* const to = in_cache(tensor, row, head, cache.stripes.count(row.position));
        if (type_of(tensor) == Type::f32) {
          std::copy_n(from, dim, reinterpret_cast<float*>(to));
        } else {
          kernels::narrow(from, reinterpret_cast<std::uint16_t*>(to), as_size(dim));
        }
      }
    }
  });
}

at::Tensor KernelOps::attend_rows(std::span<const DecoderRow> rows, const at::Tensor& queries,
                                  std::int64_t heads, const KeyValueCache& cache,
                                  const ScoreOptions& options, bool with_lse) {
  const std::int64_t kv_heads = cache.keys.size(1), dim = cache.keys.size(3);
  const std::int64_t share = heads / kv_heads;  // heads with the same keys and values
  const std::int64_t width = heads * dim, columns = width + (with_lse ? heads : 0);
  const auto count = static_cast<std::int64_t>(rows.size());
  std::int64_t longest = 0;
  for (const DecoderRow& row : rows) {
    longest = std::max(longest, cache.stripes.count(row.position + 1));
  }
  at::Tensor out = at::empty({count, columns}, at::kFloat);
  nn::parallel_for(
      0, count * kv_heads, nn::grain_of(2 * longest * share * dim),
      [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> scores(as_size(longest));
        for (std::int64_t i = begin; i < end; ++i) {
          const std::int64_t r = i / kv_heads, head = i % kv_heads;
          const DecoderRow& row = nth(rows, r);
          const std::int64_t before =
              options.window > 0 ? std::max<std::int64_t>(0, row.position + 1 - options.window) : 0;
          const std::int64_t first = cache.stripes.count(before);
          const std::int64_t tokens = cache.stripes.count(row.position + 1) - first;
          float* const to = out.data_ptr<float>() + r * columns;
          float* const lse = with_lse ? to + width + head * share : nullptr;
          if (tokens == 0) {
            std::fill_n(to + head * share * dim, share * dim, 0.0f);
            std::fill_n(lse, share, -INFINITY);
            continue;
          }
          kernels::cached_attention(
              {type_of(cache.keys), as_size(share), as_size(dim), as_size(tokens),
               floats(queries) + r * queries.stride(0) + head * share * dim,
               in_cache(cache.keys, row, head, first), in_cache(cache.values, row, head, first),
               static_cast<float>(options.scale), static_cast<float>(options.cap), lse},
              scores.data(), to + head * share * dim);
        }
      });
  return out;
}

// The formula of [Note: context parallelism] for all ranks at once, added in rank order.
at::Tensor KernelOps::merge(const at::Tensor& parts, std::int64_t heads) {
  const std::int64_t ranks = parts.size(0), rows = parts.size(1), columns = parts.size(2);
  const std::int64_t width = columns - heads, dim = width / heads;
  at::Tensor out = at::zeros({rows, width}, at::kFloat);
  nn::parallel_for(0, rows, nn::grain_of(ranks * width), [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> weights(as_size(ranks));
    for (std::int64_t i = begin * heads; i < end * heads; ++i) {
      const std::int64_t row = i / heads, head = i % heads;
      const auto part = [&](std::int64_t rank) {
        return floats(parts) + (rank * rows + row) * columns;
      };
      float most = -INFINITY, total = 0;
      for (std::int64_t r = 0; r < ranks; ++r) most = std::max(most, part(r)[width + head]);
      for (std::int64_t r = 0; r < ranks; ++r) {
        total += nth(weights, r) = std::exp(part(r)[width + head] - most);
      }
      float* const to = out.data_ptr<float>() + row * width + head * dim;
      for (std::int64_t r = 0; r < ranks; ++r) {
        const float weight = nth(weights, r) / total;
        const float* const from = part(r) + head * dim;
        for (std::int64_t d = 0; d < dim; ++d) to[d] += weight * from[d];
      }
    }
  });
  return out;
}

}  // namespace

std::unique_ptr<DecoderOps> make_kernel_ops() { return std::make_unique<KernelOps>(); }

}  // namespace tessera::models
