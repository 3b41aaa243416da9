// Operations of a decoder with ATen, on any device.

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "tessera/models/decoder_ops.h"

namespace tessera::models {
namespace {

class AtenOps final : public DecoderOps {
 public:
  // Attention multiplies masked values by 0, so the cache must be zeroed.
  AtenOps(at::ScalarType type, c10::Device device)
      : DecoderOps({.type = type,
                    .most_rows = std::numeric_limits<std::int32_t>::max(),
                    .zeroed_cache = true}),
        device_(device) {}

  void begin(std::span<const DecoderRow> rows) override {
    tokens_.clear();
    for (const DecoderRow& row : rows) tokens_.push_back(row.token);
    rows_ = rows_of(rows);
  }

  at::Tensor embed(const at::Tensor& table, std::int64_t first,
                   const at::Tensor& positions) override {
    std::vector<std::int64_t> places, absent;
    for (std::size_t r = 0; r < tokens_.size(); ++r) {
      const std::int64_t place = tokens_[r] - first;
      const bool here = place >= 0 && place < table.size(0);
      places.push_back(here ? place : 0);
      if (!here) absent.push_back(static_cast<std::int64_t>(r));
    }
    at::Tensor x = table.index_select(0, there(places));
    if (!absent.empty()) x.index_fill_(0, there(absent), 0);
    return positions.defined() ? x + positions.index_select(0, rows_.positions) : x;
  }

  at::Tensor norm(const at::Tensor& x, const nn::NormWeights& weights) override {
    return nn::norm(x, weights);
  }
  at::Tensor linear(const at::Tensor& x, const LinearWeights& weights) override {
    return at::linear(x, weights.weight, weights.bias);
  }
  at::Tensor add_linear(at::Tensor sum, const at::Tensor& x,
                        const LinearWeights& weights) override {
    return sum + linear(x, weights);
  }
  at::Tensor router_logits(const at::Tensor& x, const at::Tensor& weight) override {
    return at::linear(x.to(at::kFloat), weight);
  }

  void norm_heads(const at::Tensor& qkv, std::int64_t first, std::int64_t count,
                  const nn::NormWeights& weights) override {
    const at::Tensor heads = heads_of(qkv, first, count, weights.weight.numel());
    heads.copy_(nn::rms_norm(heads.contiguous(), weights.weight, weights.eps));
  }

  void rotate(const at::Tensor& qkv, std::int64_t count, const at::Tensor& table) override {
    const at::Tensor heads = heads_of(qkv, 0, count, table.size(1));
    const auto angles = table.index_select(0, rows_.positions).unsqueeze(1).chunk(2, -1);
    const at::Tensor &cos = angles[0], &sin = angles[1];
    const auto parts = heads.to(at::kFloat).chunk(2, -1);
    heads.copy_(at::cat({parts[0] * cos - parts[1] * sin, parts[1] * cos + parts[0] * sin}, -1));
  }

  void remember(const at::Tensor& qkv, const KeyValueCache& cache) override {
    const std::int64_t kv_heads = cache.keys.size(1), dim = cache.keys.size(3);
    const std::int64_t heads = qkv.size(1) / dim - 2 * kv_heads;
    const TokenStripes& stripes = cache.stripes;
    at::Tensor here;  // rows that this rank holds
    if (stripes.ranks > 1) {
      here = rows_.positions.remainder(stripes.ranks).eq(stripes.rank).nonzero().squeeze(1);
    }
    const auto own = [&](const at::Tensor& x) {
      return here.defined() ? x.index_select(0, here) : x;
    };
    const at::Tensor slots = own(rows_.slots);
    const at::Tensor places = own(rows_.positions).div(stripes.ranks, "floor");
    const auto write = [&](const at::Tensor& tensor, std::int64_t first) {
      tensor.transpose(1, 2).index_put_({slots, places}, own(heads_of(qkv, first, kv_heads, dim)));
    };
    write(cache.keys, heads);
    write(cache.values, heads + kv_heads);
  }

  at::Tensor attend(const at::Tensor& qkv, const KeyValueCache& cache,
                    const ScoreOptions& options) override {
    const std::int64_t dim = cache.keys.size(3);
    const std::int64_t heads = qkv.size(1) / dim - 2 * cache.keys.size(1);
    const Operands in = operands_of(rows_, heads_of(qkv, 0, heads, dim), cache, options.window);
    return rows_.joined(mix(in, options)).reshape({qkv.size(0), heads * dim});
  }

  at::Tensor attend_part(std::span<const DecoderRow> rows, const at::Tensor& queries,
                         const KeyValueCache& cache, const ScoreOptions& options) override {
    const std::int64_t dim = cache.keys.size(3), heads = queries.size(1) / dim;
    const Rows own = rows_of(rows);
    const Operands in = operands_of(own, heads_of(queries, 0, heads, dim), cache, options.window);
    const at::Tensor scores = scores_of(in, options);
    const at::Tensor lse = at::logsumexp(scores, {3}, /*keepdim=*/true);
    const at::Tensor p = (scores - lse.masked_fill(lse.isinf(), 0)).exp();
    const at::Tensor out = at::matmul(p, in.v.to(at::kFloat));
    return at::cat({own.joined(out).flatten(1), own.joined(lse).flatten(1)}, 1);
  }

  at::Tensor merge(const at::Tensor& parts, std::int64_t heads) override {
    const std::int64_t width = parts.size(2) - heads;
    const at::Tensor weights = at::softmax(parts.narrow(2, width, heads), 0).unsqueeze(3);
    const at::Tensor results = parts.narrow(2, 0, width).unflatten(2, {heads, -1});
    return (results * weights).sum(0).flatten(1).to(traits.type);
  }

  at::Tensor activate(at::Tensor x, Activation f, bool gated) override {
    if (gated) {
      const auto parts = x.chunk(2, -1);
      return activate(parts[0], f, false) * parts[1];
    }
    switch (f) {
      case Activation::gelu_tanh: return at::gelu(x, "tanh");
      case Activation::gelu: return at::gelu(x, "none");
      case Activation::relu: return at::relu(x);
      case Activation::silu: return at::silu(x);
    }
    return x;
  }

  at::Tensor sigmoid(const at::Tensor& x) override { return at::sigmoid(x.to(at::kFloat)); }

  at::Tensor capped(at::Tensor logits, double cap) override { return (logits / cap).tanh() * cap; }

 private:
  // Rows of a call: one of each of several texts, or all of one text.
  struct Rows {
    at::Tensor slots, positions;
    std::int64_t longest = 0, slot = 0;
    bool step = false;  // one row of each of several texts

    // Returns [N, H, 1, d] or [1, H, N, d] of [N, H, d].
    at::Tensor apart(const at::Tensor& x) const {
      return step ? x.unsqueeze(2) : x.transpose(0, 1).unsqueeze(0);
    }
    // Inverse of apart().
    at::Tensor joined(const at::Tensor& x) const {
      return step ? x.squeeze(2) : x.squeeze(0).transpose(0, 1);
    }
  };
  // Operands of attention: [N or 1, H, queries or keys, d], and the keys that each query sees.
  struct Operands {
    at::Tensor q, k, v, mask;
  };

  at::Tensor there(const std::vector<std::int64_t>& list) const {
    return at::tensor(list, at::kLong).to(device_);
  }
  Rows rows_of(std::span<const DecoderRow> rows) const {
    std::vector<std::int64_t> slots, positions;
    for (const DecoderRow& row : rows) {
      slots.push_back(row.slot);
      positions.push_back(row.position);
    }
    return {there(slots), there(positions),
            1 + *std::max_element(positions.begin(), positions.end()), slots[0],
            slots.size() > 1 && slots[0] != slots[1]};
  }
  static at::Tensor heads_of(const at::Tensor& qkv, std::int64_t first, std::int64_t count,
                             std::int64_t dim) {  // [N, count, d]
    return qkv.narrow(1, first * dim, count * dim).unflatten(1, {count, dim});
  }

  // `q`: [N, H, d].
  static Operands operands_of(const Rows& rows, const at::Tensor& q, const KeyValueCache& cache,
                              std::int64_t window) {
    // A rank that has none of the tokens yet reads one, which no row sees.
    const std::int64_t longest = std::max<std::int64_t>(1, cache.stripes.count(rows.longest));
    const std::int64_t repeats = q.size(1) / cache.keys.size(1);
    const auto known = [&](const at::Tensor& tensor) {
      const at::Tensor own =
          rows.step ? tensor.index_select(0, rows.slots) : tensor.narrow(0, rows.slot, 1);
      return own.narrow(2, 0, longest).repeat_interleave(repeats, 1);
    };
    const at::Tensor all =
        at::arange(longest, rows.positions.options()) * cache.stripes.ranks + cache.stripes.rank;
    const at::Tensor own = rows.positions.unsqueeze(1);
    at::Tensor mask = all <= own;  // [N, longest]
    if (window > 0) mask = mask.logical_and(all > own - window);
    mask = rows.step ? mask.unsqueeze(1).unsqueeze(1) : mask.unsqueeze(0).unsqueeze(0);
    return {rows.apart(q), known(cache.keys), known(cache.values), mask};
  }

  // Returns the scores in fp32, -infinity where masked.
  static at::Tensor scores_of(const Operands& in, const ScoreOptions& options) {
    at::Tensor scores = at::matmul(in.q, in.k.transpose(2, 3)).to(at::kFloat) * options.scale;
    if (options.cap > 0) scores = (scores / options.cap).tanh() * options.cap;
    return scores.masked_fill(in.mask.logical_not(), -INFINITY);
  }

  static at::Tensor mix(const Operands& in, const ScoreOptions& options) {
    if (options.cap == 0) {
      return at::scaled_dot_product_attention(in.q, in.k, in.v, in.mask, 0.0, false, options.scale);
    }
    return at::matmul(at::softmax(scores_of(in, options), -1).to(in.q.scalar_type()), in.v);
  }

  const c10::Device device_;
  std::vector<std::int64_t> tokens_;
  Rows rows_;
};

}  // namespace

std::unique_ptr<DecoderOps> make_aten_ops(at::ScalarType type, c10::Device device) {
  return std::make_unique<AtenOps>(type, device);
}

}  // namespace tessera::models
