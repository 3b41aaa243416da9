// [Note: decoding] on the CPU. A few rows use Tessera's kernels, which read every matrix once. The
// many rows of a prompt use matrix products, up to kChunk rows at a time.

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/half.h"
#include "tessera/core/index.h"
#include "tessera/kernels/decode.h"
#include "tessera/kernels/layers.h"
#include "tessera/models/decoder.h"
#include "tessera/nn/parallel_for.h"

namespace tessera::models {
namespace {

using kernels::FewRows;
using kernels::Type;

constexpr std::int64_t kFew = 16;     // most rows of a text for Tessera's kernels
constexpr std::int64_t kChunk = 256;  // most rows of a text that run through the model together
constexpr std::int64_t kTile = 8;     // outputs that a thread computes at once

const float* floats(const at::Tensor& t) { return t.defined() ? t.data_ptr<float>() : nullptr; }

// Calls f(first, last) in parallel for ranges of whole tiles that cover the outputs [0, n).
// `numbers`: elements that are processed for each output.
template <class Body>
void share_out(std::int64_t n, std::int64_t numbers, const Body& f) {
  nn::parallel_for(0, (n + kTile - 1) / kTile, nn::grain_of(kTile * numbers),
                   [&](std::int64_t begin, std::int64_t end) {
                     f(as_size(begin * kTile), as_size(std::min(n, end * kTile)));
                   });
}

class HostDecoder final : public Decoder {
 public:
  HostDecoder(const ModelShape& shape, const DecoderOptions& options, const ReadParam& read)
      : Decoder(shape, options),
        type_(options_.type == at::kFloat ? Type::f32 : Type::bf16),
        weights_(read_weights(shape, options_, at::kFloat, read)) {
    const std::int64_t most = std::max(options_.slots, std::min(kChunk, options_.capacity));
    const auto rows_of = [&](std::int64_t width) { return at::empty({most, width}, at::kFloat); };
    x_ = rows_of(part_.hidden);
    h_ = rows_of(part_.hidden);
    qkv_ = rows_of(part_.q_width() + 2 * part_.kv_width());
    mixed_ = rows_of(part_.q_width());
    wide_ = rows_of((part_.swiglu ? 2 : 1) * part_.ffn);
    acted_ = part_.swiglu ? rows_of(part_.ffn) : wide_;
    statistics_ = rows_of(2);
    scores_ = at::empty({at::get_num_threads(), options_.capacity}, at::kFloat);
    logits_ = at::empty({options_.slots, part_.vocab}, at::kFloat);
    if (part_.rotary()) rotary_ = rotary_table(part_, options_.capacity);
    for (std::int64_t layer = 0; layer < part_.layers; ++layer) {
      const auto cache = [&] {
        return at::empty({options_.slots, part_.kv_heads, options_.capacity, part_.head_dim()},
                         options_.type);
      };
      keys_.push_back(cache());
      values_.push_back(cache());
    }
  }

 protected:
  at::Tensor run(std::span<const Row> rows, bool last_only) override;
  void run_texts(std::span<const Row> rows, std::span<const std::size_t> ends,
                 const at::Tensor& logits) override;

 private:
  void embed(std::span<const Row> rows);
  void norm(const at::Tensor& weight, const at::Tensor& bias, std::int64_t first, std::int64_t rows,
            float* to);
  // Computes y = x · wᵀ + b, or adds that to y. Calls `after(first, last)` for finished outputs.
  template <class After>
  void linear(std::int64_t rows, bool few, const at::Tensor& x, const at::Tensor& weight,
              const at::Tensor& bias, const at::Tensor& y, bool add, const After& after);
  void linear(std::int64_t rows, bool few, const at::Tensor& x, const at::Tensor& weight,
              const at::Tensor& bias, const at::Tensor& y, bool add = false) {
    linear(rows, few, x, weight, bias, y, add, [](std::size_t, std::size_t) {});
  }
  void add_linear(std::int64_t rows, bool few, const at::Tensor& from, const at::Tensor& weight,
                  const at::Tensor& bias);
  // Computes logits [rows, V] from the first rows of h_, which the final norm has written.
  void head(std::int64_t rows, bool few, const at::Tensor& logits);
  at::Tensor as_floats(const at::Tensor& weight);
  void attention(std::int64_t layer, std::span<const Row> rows, bool few);
  void turn(float* head, std::int64_t position) const;
  void keep(std::int64_t layer, const Row& row, std::int64_t kv_head, float* qkv);
  void look_back(std::int64_t layer, const Row& row, std::int64_t kv_head, const float* qkv,
                 float* out);
  void mlp(const BlockWeights& block, std::int64_t rows, bool few);
  void activate(std::int64_t rows, const at::Tensor& bias, std::size_t first, std::size_t last);
  void block(std::int64_t layer, std::span<const Row> rows, bool few);
  void chunk(std::span<const Row> rows, bool few);
  void reserve_scores();

  const Type type_;
  const DecoderWeights weights_;
  at::Tensor x_, h_, qkv_, mixed_, wide_, acted_, statistics_, scores_, logits_;  // [rows, …]
  at::Tensor widened_;                                                            // of a matrix
  RotaryTable rotary_;
  std::vector<at::Tensor> keys_, values_;  // [slots, kv heads, capacity, d]
};

void HostDecoder::embed(std::span<const Row> rows) {
  const std::int64_t width = part_.hidden;
  const auto row_of = [&](const at::Tensor& table, std::int64_t row, std::int64_t i) {
    return type_ == Type::f32
               ? table.data_ptr<float>()[row * width + i]
               : from_bf16(static_cast<const std::uint16_t*>(table.data_ptr())[row * width + i]);
  };
  // With several ranks, one has the row of the token; the first adds the position.
  const std::int64_t own = weights_.tok.size(0), first = options_.tp.rank() * own;
  const bool placed = weights_.pos.defined() && options_.tp.rank() == 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    float* const to = x_.data_ptr<float>() + static_cast<std::int64_t>(r) * width;
    const std::int64_t token = rows[r].token - first;
    const bool here = token >= 0 && token < own;
    for (std::int64_t i = 0; i < width; ++i) {
      to[i] = here ? row_of(weights_.tok, token, i) : 0.0f;
      if (placed) to[i] += row_of(weights_.pos, rows[r].position, i);
    }
  }
  if (!alone()) summed(x_.narrow(0, 0, static_cast<std::int64_t>(rows.size())));
}

// Ends a residual branch by adding it to x. With several ranks, each has a part of the sum.
void HostDecoder::add_linear(std::int64_t rows, bool few, const at::Tensor& from,
                             const at::Tensor& weight, const at::Tensor& bias) {
  if (alone()) {
    linear(rows, few, from, weight, bias, x_, true);
    return;
  }
  linear(rows, few, from, weight, options_.tp.rank() == 0 ? bias : at::Tensor(), h_);
  x_.narrow(0, 0, rows).add_(summed(h_.narrow(0, 0, rows)));
}

void HostDecoder::head(std::int64_t rows, bool few, const at::Tensor& logits) {
  if (alone()) {
    linear(rows, few, h_, weights_.head, {}, logits);
    return;
  }
  const at::Tensor own = at::empty({rows, weights_.head.size(0)}, at::kFloat);
  linear(rows, few, h_, weights_.head, {}, own);
  logits.narrow(0, 0, rows).copy_(gathered(own));
}

void HostDecoder::norm(const at::Tensor& weight, const at::Tensor& bias, std::int64_t first,
                       std::int64_t rows, float* to) {
  const float* const x = x_.data_ptr<float>() + first * part_.hidden;
  const auto cols = as_size(part_.hidden);
  const auto eps = static_cast<float>(part_.norm_eps);
  nn::parallel_for(0, rows, nn::grain_of(part_.hidden), [&](std::int64_t begin, std::int64_t end) {
    const auto count = as_size(end - begin), skipped = as_size(begin) * cols;
    if (!part_.biases.norm) {
      kernels::rms_norm_rows(x + skipped, floats(weight), eps, count, cols, to + skipped);
      return;
    }
    float* const statistics = statistics_.data_ptr<float>() + 2 * begin;
    kernels::layer_norm_forward(
        {Type::f32, count, cols, x + skipped, nullptr, floats(weight), floats(bias), eps},
        to + skipped, nullptr, statistics, statistics + count);
  });
}

at::Tensor HostDecoder::as_floats(const at::Tensor& weight) {
  if (type_ == Type::f32) return weight;
  if (!widened_.defined() || widened_.numel() < weight.numel()) {
    widened_ = at::empty({weight.numel()}, at::kFloat);
  }
  const auto* const from = static_cast<const std::uint16_t*>(weight.data_ptr());
  float* const to = widened_.data_ptr<float>();
  nn::parallel_for(0, weight.numel(), 1 << 16, [&](std::int64_t begin, std::int64_t end) {
    kernels::widen(from + begin, to + begin, as_size(end - begin));
  });
  return widened_.narrow(0, 0, weight.numel()).view(weight.sizes());
}

template <class After>
void HostDecoder::linear(std::int64_t rows, bool few, const at::Tensor& x, const at::Tensor& weight,
                         const at::Tensor& bias, const at::Tensor& y, bool add,
                         const After& after) {
  const std::int64_t out = weight.size(0);
  float* const to = y.data_ptr<float>();
  if (few) {
    const FewRows what{type_,
                       as_size(rows),
                       as_size(weight.size(1)),
                       as_size(out),
                       floats(x),
                       weight.data_ptr(),
                       floats(bias),
                       add};
    share_out(out, weight.size(1), [&](std::size_t first, std::size_t last) {
      kernels::few_rows_linear(what, to, first, last);
      after(first, last);
    });
    return;
  }
  at::Tensor result = y.narrow(0, 0, rows);
  const at::Tensor from = x.narrow(0, 0, rows), matrix = as_floats(weight).t();
  if (add) {
    at::addmm_out(result, result, from, matrix);
  } else {
    at::mm_out(result, from, matrix);
  }
  share_out(out, rows, [&](std::size_t first, std::size_t last) {
    if (bias.defined()) {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::size_t o = first; o < last; ++o)
          to[r * out + static_cast<std::int64_t>(o)] += floats(bias)[o];
      }
    }
    after(first, last);
  });
}

void HostDecoder::turn(float* head, std::int64_t position) const {
  const std::int64_t half = part_.head_dim() / 2;
  const float* const cos = rotary_.cos.data_ptr<float>() + position * half;
  const float* const sin = rotary_.sin.data_ptr<float>() + position * half;
  for (std::int64_t i = 0; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

// Applies rotary positions for this kv head, and writes its keys and values into the cache.
void HostDecoder::keep(std::int64_t layer, const Row& row, std::int64_t kv_head, float* qkv) {
  const std::int64_t dim = part_.head_dim(), group = part_.heads / part_.kv_heads;
  float* const key = qkv + part_.q_width() + kv_head * dim;
  const float* const value = key + part_.kv_width();
  if (const BlockWeights& block = nth(weights_.blocks, layer); block.q_norm.defined()) {
    const auto eps = static_cast<float>(part_.norm_eps);
    float* const queries = qkv + kv_head * group * dim;
    kernels::rms_norm_rows(queries, floats(block.q_norm), eps, as_size(group), as_size(dim),
                           queries);
    kernels::rms_norm_rows(key, floats(block.k_norm), eps, 1, as_size(dim), key);
  }
  if (part_.rotary()) {
    for (std::int64_t h = 0; h < group; ++h) turn(qkv + (kv_head * group + h) * dim, row.position);
    turn(key, row.position);
  }
  const std::int64_t at =
      ((row.slot * part_.kv_heads + kv_head) * options_.capacity + row.position) * dim;
  for (const auto& [cache, from] : {std::pair<at::Tensor&, const float*>{nth(keys_, layer), key},
                                    {nth(values_, layer), value}}) {
    if (type_ == Type::f32) {
      std::copy(from, from + dim, cache.data_ptr<float>() + at);
    } else {
      kernels::narrow(from, static_cast<std::uint16_t*>(cache.data_ptr()) + at, as_size(dim));
    }
  }
}

void HostDecoder::look_back(std::int64_t layer, const Row& row, std::int64_t kv_head,
                            const float* qkv, float* out) {
  const std::int64_t dim = part_.head_dim(), group = part_.heads / part_.kv_heads;
  const std::int64_t window = part_.window_of(layer);
  const std::int64_t first = window > 0 ? std::max<std::int64_t>(0, row.position + 1 - window) : 0;
  const std::int64_t at = ((row.slot * part_.kv_heads + kv_head) * options_.capacity + first) * dim;
  const auto behind = [&](const at::Tensor& cache) {
    return static_cast<const char*>(cache.data_ptr()) +
           at * static_cast<std::int64_t>(cache.element_size());
  };
  kernels::cached_attention(
      {type_, as_size(group), as_size(dim), as_size(row.position + 1 - first),
       qkv + kv_head * group * dim, behind(nth(keys_, layer)), behind(nth(values_, layer)),
       static_cast<float>(1 / std::sqrt(static_cast<double>(dim)))},
      scores_.data_ptr<float>() + at::get_thread_num() * options_.capacity,
      out + kv_head * group * dim);
}

void HostDecoder::attention(std::int64_t layer, std::span<const Row> rows, bool few) {
  const std::int64_t heads = part_.kv_heads, count = static_cast<std::int64_t>(rows.size());
  float* const qkv = qkv_.data_ptr<float>();
  float* const out = mixed_.data_ptr<float>();
  // Cached elements that a kv head of the last row reads, which is the maximum over rows.
  const std::int64_t seen = 2 * (rows.back().position + 1) * part_.q_width() / heads;
  const auto each = [&](const auto& f) {
    nn::parallel_for(
        0, count * heads, nn::grain_of(seen), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t row = i / heads;
            f(nth(rows, row), i % heads, qkv + row * qkv_.size(1), out + row * mixed_.size(1));
          }
        });
  };
  // Rows of one text are consecutive and attend to each other's keys, so keys are written first.
  const bool alone =
      few && std::adjacent_find(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
               return a.slot == b.slot;
             }) == rows.end();
  if (!alone) {
    each([&](const Row& row, std::int64_t head, float* from, float*) {
      keep(layer, row, head, from);
    });
  }
  each([&](const Row& row, std::int64_t head, float* from, float* to) {
    if (alone) keep(layer, row, head, from);
    look_back(layer, row, head, from, to);
  });
}

// Applies the activation to columns [first, last) of the MLP's inner layer. Without a gate it also
// adds the bias, which the linear has omitted.
void HostDecoder::activate(std::int64_t rows, const at::Tensor& bias, std::size_t first,
                           std::size_t last) {
  const std::int64_t ffn = part_.ffn;
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const from = wide_.data_ptr<float>() + r * wide_.size(1);
    if (part_.swiglu) {
      kernels::silu_product(from + first, from + ffn + first, last - first,
                            acted_.data_ptr<float>() + r * ffn + first);
    } else if (part_.activation == Activation::gelu_tanh) {
      kernels::gelu_forward({Type::f32, 1, last - first, from + first,
                             bias.defined() ? floats(bias) + first : nullptr},
                            from + first);
    } else {
      for (std::size_t i = first; i < last; ++i) {
        const float x = from[i] + (bias.defined() ? floats(bias)[i] : 0.0f);
        from[i] = part_.activation == Activation::relu ? std::max(0.0f, x)
                                                       : 0.5f * x * (1 + std::erf(x * 0.70710678f));
      }
    }
  }
}

void HostDecoder::mlp(const BlockWeights& block, std::int64_t rows, bool few) {
  const auto after = [&](std::size_t first, std::size_t last) {
    activate(rows, part_.swiglu ? at::Tensor() : block.fc_bias, first, last);
  };
  if (part_.swiglu) {
    // Gate and value of a column are computed by different threads.
    linear(rows, few, h_, block.fc, block.fc_bias, wide_);
    share_out(part_.ffn, rows, after);
  } else {
    linear(rows, few, h_, block.fc, {}, wide_, false, after);
  }
  add_linear(rows, few, acted_, block.proj2, block.proj2_bias);
}

void HostDecoder::block(std::int64_t layer, std::span<const Row> rows, bool few) {
  const BlockWeights& block = nth(weights_.blocks, layer);
  const auto count = static_cast<std::int64_t>(rows.size());
  norm(block.norm1, block.norm1_bias, 0, count, h_.data_ptr<float>());
  linear(count, few, h_, block.qkv, block.qkv_bias, qkv_);
  attention(layer, rows, few);
  add_linear(count, few, mixed_, block.proj, block.proj_bias);
  norm(block.norm2, block.norm2_bias, 0, count, h_.data_ptr<float>());
  mlp(block, count, few);
}

void HostDecoder::chunk(std::span<const Row> rows, bool few) {
  embed(rows);
  for (std::int64_t layer = 0; layer < part_.layers; ++layer) block(layer, rows, few);
}

// Short texts run together: the numbers of a row do not depend on other rows, so each text gets the
// same numbers as alone. Longer texts run one by one, with matrix products.
void HostDecoder::run_texts(std::span<const Row> rows, std::span<const std::size_t> ends,
                            const at::Tensor& logits) {
  const at::NoGradGuard no_gradients;
  const auto most = as_size(x_.size(0));
  std::size_t begin = 0, first = 0;  // row and text
  while (first < ends.size()) {
    std::size_t last = first;  // one past the last text of this batch
    while (last < ends.size() && ends[last] - begin <= most &&
           ends[last] - (last == 0 ? 0 : ends[last - 1]) <= as_size(kFew)) {
      ++last;
    }
    if (last < first + 2) {
      Decoder::run_texts(rows.subspan(begin, ends[first] - begin),
                         std::vector<std::size_t>{ends[first] - begin},
                         logits.narrow(0, static_cast<std::int64_t>(first), 1));
      begin = ends[first++];
      continue;
    }
    reserve_scores();
    chunk(rows.subspan(begin, ends[last - 1] - begin), true);
    // Move the last rows to the front, for the head.
    const auto count = static_cast<std::int64_t>(last - first);
    float* const x = x_.data_ptr<float>();
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = static_cast<std::int64_t>(ends[first + as_size(i)] - 1 - begin);
      if (row == i) continue;
      std::copy_n(x + row * part_.hidden, part_.hidden, x + i * part_.hidden);
    }
    norm(weights_.norm, weights_.norm_bias, 0, count, h_.data_ptr<float>());
    head(count, true, logits.narrow(0, static_cast<std::int64_t>(first), count));
    begin = ends[last - 1];
    first = last;
  }
}

void HostDecoder::reserve_scores() {
  if (at::get_num_threads() <= scores_.size(0)) return;
  scores_ = at::empty({at::get_num_threads(), options_.capacity}, at::kFloat);
}

at::Tensor HostDecoder::run(std::span<const Row> rows, bool last_only) {
  const at::NoGradGuard no_gradients;
  const auto count = static_cast<std::int64_t>(rows.size());
  reserve_scores();
  // A step uses the same kernels for any number of texts, so that results do not depend on it.
  const bool step = count > 1 && rows[0].slot != rows[1].slot;
  at::Tensor logits = logits_;
  if (!last_only && count > options_.slots) logits = at::empty({count, part_.vocab}, at::kFloat);
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t size = step ? count : std::min(kChunk, count - begin);
    chunk(rows.subspan(as_size(begin), as_size(size)), step || size <= kFew);
    begin += size;
    const bool last = begin == count;
    if (last_only && !last) continue;
    // The head, only for the requested rows.
    const std::int64_t from = last_only ? size - 1 : 0, heads = size - from;
    norm(weights_.norm, weights_.norm_bias, from, heads, h_.data_ptr<float>());
    head(heads, step || heads <= kFew, last_only ? logits : logits.narrow(0, begin - size, size));
  }
  return last_only ? logits.select(0, 0) : logits.narrow(0, 0, count);
}

}  // namespace

std::unique_ptr<Decoder> make_decoder(const ModelShape& shape, const DecoderOptions& options,
                                      const ReadParam& read) {
  // The kernels here support no soft caps, no post-norms, and no gates other than SwiGLU.
  const bool ours = !shape.post_norms && shape.attention_cap == 0 && shape.logit_cap == 0 &&
                    shape.attention_scale == 0 && shape.embedding_scale == 1 &&
                    shape.window_rotary_base == 0 && shape.gate == Activation::silu;
  if (!options.device.is_cpu() || !ours) return make_plain_decoder(shape, options, read);
  return std::make_unique<HostDecoder>(shape, options, read);
}

}  // namespace tessera::models
