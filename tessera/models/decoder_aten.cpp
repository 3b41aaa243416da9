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
    std::vector<std::int64_t> slots, positions;
    tokens_.clear();
    for (const DecoderRow& row : rows) {
      slots.push_back(row.slot);
      positions.push_back(row.position);
      tokens_.push_back(row.token);
    }
    slots_ = there(slots);
    positions_ = there(positions);
    longest_ = 1 + *std::max_element(positions.begin(), positions.end());
    step_ = slots.size() > 1 && slots[0] != slots[1];
    slot_ = slots[0];
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
    return positions.defined() ? x + positions.index_select(0, positions_) : x;
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
    const auto angles = table.index_select(0, positions_).unsqueeze(1).chunk(2, -1);
    const at::Tensor &cos = angles[0], &sin = angles[1];
    const auto parts = heads.to(at::kFloat).chunk(2, -1);
    heads.copy_(at::cat({parts[0] * cos - parts[1] * sin, parts[1] * cos + parts[0] * sin}, -1));
  }

  at::Tensor attend(const at::Tensor& qkv, const KeyValueCache& cache,
                    const ScoreOptions& options) override {
    const std::int64_t kv_heads = cache.keys.size(1), dim = cache.keys.size(3);
    const std::int64_t heads = qkv.size(1) / dim - 2 * kv_heads;
    const at::Tensor q = heads_of(qkv, 0, heads, dim);
    const auto remember = [&](const at::Tensor& tensor, std::int64_t first) {
      tensor.transpose(1, 2).index_put_({slots_, positions_}, heads_of(qkv, first, kv_heads, dim));
    };
    remember(cache.keys, heads);
    remember(cache.values, heads + kv_heads);
    const auto known = [&](const at::Tensor& tensor) {  // [N or 1, H, longest, d]
      const at::Tensor own = step_ ? tensor.index_select(0, slots_) : tensor.narrow(0, slot_, 1);
      return own.narrow(2, 0, longest_).repeat_interleave(heads / kv_heads, 1);
    };
    // One query of each text, or all queries of one text.
    const at::Tensor queries = step_ ? q.unsqueeze(2) : q.transpose(0, 1).unsqueeze(0);
    const at::Tensor mask = seen(options.window);
    const at::Tensor mixed =
        mix(queries, known(cache.keys), known(cache.values),
            step_ ? mask.unsqueeze(1).unsqueeze(1) : mask.unsqueeze(0).unsqueeze(0), options);
    return (step_ ? mixed : mixed.squeeze(0).transpose(0, 1)).reshape({q.size(0), heads * dim});
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
  at::Tensor there(const std::vector<std::int64_t>& list) const {
    return at::tensor(list, at::kLong).to(device_);
  }
  static at::Tensor heads_of(const at::Tensor& qkv, std::int64_t first, std::int64_t count,
                             std::int64_t dim) {  // [N, count, d]
    return qkv.narrow(1, first * dim, count * dim).unflatten(1, {count, dim});
  }

  // Returns the mask of positions that each row attends to: [N, longest].
  at::Tensor seen(std::int64_t window) const {
    const at::Tensor all = at::arange(longest_, positions_.options()).unsqueeze(0);
    const at::Tensor own = positions_.unsqueeze(1);
    const at::Tensor mask = all <= own;
    return window > 0 ? mask.logical_and(all > own - window) : mask;
  }

  static at::Tensor mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& mask, const ScoreOptions& options) {
    if (options.cap == 0) {
      return at::scaled_dot_product_attention(q, k, v, mask, 0.0, false, options.scale);
    }
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).to(at::kFloat) * options.scale;
    const at::Tensor capped = (scores / options.cap).tanh() * options.cap;
    const at::Tensor seen = capped.masked_fill(mask.logical_not(), -INFINITY);
    return at::matmul(at::softmax(seen, -1).to(q.scalar_type()), v);
  }

  const c10::Device device_;
  std::vector<std::int64_t> tokens_;
  at::Tensor slots_, positions_;
  std::int64_t longest_ = 0, slot_ = 0;
  bool step_ = false;  // one row of each of several texts
};

}  // namespace

std::unique_ptr<DecoderOps> make_aten_ops(at::ScalarType type, c10::Device device) {
  return std::make_unique<AtenOps>(type, device);
}

}  // namespace tessera::models
