// [Note: decoding] with ATen's operations, on any device.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/core/index.h"
#include "tessera/models/decoder.h"
#include "tessera/nn/ops.h"

namespace tessera::models {
namespace {

class PlainDecoder final : public Decoder {
 public:
  PlainDecoder(const ModelShape& shape, const DecoderOptions& options, const ReadParam& read)
      : Decoder(shape, options), weights_(read_weights(shape, options_, options_.type, read)) {
    for (const bool windowed : {false, true}) {
      if (!shape.rotary()) break;
      RotaryTable& table = rotary_[windowed ? 1 : 0];
      table = rotary_table(part_, options_.capacity, windowed);
      table.cos = table.cos.to(options_.device);
      table.sin = table.sin.to(options_.device);
    }
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      const auto cache = [&] {
        return at::zeros({options_.slots, part_.kv_heads, options_.capacity, part_.head_dim()},
                         at::device(options_.device).dtype(options_.type));
      };
      keys_.push_back(cache());
      values_.push_back(cache());
    }
  }

 protected:
  at::Tensor run(std::span<const Row> rows, bool last_only) override {
    const at::NoGradGuard no_gradients;
    const auto count = static_cast<std::int64_t>(rows.size());
    std::vector<std::int64_t> slots, positions, tokens;
    for (const Row& row : rows) {
      slots.push_back(row.slot);
      positions.push_back(row.position);
      tokens.push_back(row.token);
    }
    const auto there = [&](const std::vector<std::int64_t>& list) {
      return at::tensor(list, at::kLong).to(options_.device);
    };
    slots_ = there(slots);
    positions_ = there(positions);
    longest_ = 1 + *std::max_element(positions.begin(), positions.end());
    step_ = count > 1 && slots[0] != slots[1];
    slot_ = slots[0];

    at::Tensor x = embedded(there(tokens));  // [N, C]
    if (part_.embedding_scale != 1) {
      x = x * at::scalar_tensor(part_.embedding_scale, x.options());
    }
    if (weights_.pos.defined()) x = x + weights_.pos.index_select(0, positions_);
    for (std::int64_t layer = 0; layer < part_.layers; ++layer) x = block(layer, x);
    if (last_only) x = x.narrow(0, count - 1, 1);
    x = nn::norm(x, {weights_.norm, weights_.norm_bias, part_.norm_eps});
    at::Tensor logits = gathered(at::linear(x, weights_.head)).to(c10::kCPU, at::kFloat);
    if (part_.logit_cap > 0) logits = (logits / part_.logit_cap).tanh() * part_.logit_cap;
    return last_only ? logits.select(0, 0) : logits;
  }

 private:
  // With several ranks, one has the row of the token; rows of the others are set to 0.
  at::Tensor embedded(const at::Tensor& tokens) const {
    if (alone()) return weights_.tok.index_select(0, tokens);
    const std::int64_t own = weights_.tok.size(0), first = options_.tp.rank() * own;
    const at::Tensor places = tokens - first;
    const at::Tensor here = places.ge(0).logical_and(places.lt(own)).unsqueeze(1);
    const at::Tensor rows = weights_.tok.index_select(0, places.clamp(0, own - 1));
    return summed(rows.masked_fill(here.logical_not(), 0).contiguous());
  }
  // Ends a residual branch. With several ranks, each has a part of the sum.
  at::Tensor closing(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) const {
    if (alone()) return at::linear(x, weight, bias);
    const at::Tensor sum = summed(at::linear(x, weight).contiguous());
    return bias.defined() ? sum + bias : sum;
  }

  at::Tensor turned(const at::Tensor& heads, std::int64_t layer) const {  // [N, H, d]
    const RotaryTable& table = rotary_[part_.window_of(layer) > 0 ? 1 : 0];
    const at::Tensor cos = table.cos.index_select(0, positions_).unsqueeze(1);
    const at::Tensor sin = table.sin.index_select(0, positions_).unsqueeze(1);
    const auto parts = heads.to(at::kFloat).chunk(2, -1);
    return at::cat({parts[0] * cos - parts[1] * sin, parts[1] * cos + parts[0] * sin}, -1)
        .to(heads.scalar_type());
  }

  // Returns the mask of positions that each row attends to: [N, longest].
  at::Tensor seen(std::int64_t layer) const {
    const at::Tensor all = at::arange(longest_, positions_.options()).unsqueeze(0);
    const at::Tensor own = positions_.unsqueeze(1);
    at::Tensor mask = all <= own;
    if (const std::int64_t window = part_.window_of(layer); window > 0) {
      mask = mask.logical_and(all > own - window);
    }
    return mask;
  }

  at::Tensor attention(std::int64_t layer, const at::Tensor& qkv) {
    const std::int64_t count = qkv.size(0), dim = part_.head_dim();
    const auto parts =
        qkv.split_with_sizes({part_.q_width(), part_.kv_width(), part_.kv_width()}, -1);
    at::Tensor q = parts[0].view({count, part_.heads, dim});
    at::Tensor k = parts[1].view({count, part_.kv_heads, dim});
    const at::Tensor v = parts[2].view({count, part_.kv_heads, dim});
    if (const BlockWeights& w = nth(weights_.blocks, layer); w.q_norm.defined()) {
      q = nn::rms_norm(q.contiguous(), w.q_norm, part_.norm_eps);
      k = nn::rms_norm(k.contiguous(), w.k_norm, part_.norm_eps);
    }
    if (part_.rotary()) {
      q = turned(q, layer);
      k = turned(k, layer);
    }
    const at::Tensor &keys = nth(keys_, layer), &values = nth(values_, layer);
    keys.transpose(1, 2).index_put_({slots_, positions_}, k);
    values.transpose(1, 2).index_put_({slots_, positions_}, v);
    const std::int64_t times = part_.heads / part_.kv_heads;
    const auto known = [&](const at::Tensor& cache) {  // [N or 1, H, longest, d]
      const at::Tensor own = step_ ? cache.index_select(0, slots_) : cache.narrow(0, slot_, 1);
      return own.narrow(2, 0, longest_).repeat_interleave(times, 1);
    };
    // One query of each text, or all queries of one text.
    const at::Tensor queries = step_ ? q.unsqueeze(2) : q.transpose(0, 1).unsqueeze(0);
    const at::Tensor mask =
        step_ ? seen(layer).unsqueeze(1).unsqueeze(1) : seen(layer).unsqueeze(0).unsqueeze(0);
    const at::Tensor mixed = mix(queries, known(keys), known(values), mask);
    return step_ ? mixed.reshape({count, part_.q_width()})
                 : mixed.squeeze(0).transpose(0, 1).reshape({count, part_.q_width()});
  }

  at::Tensor mix(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& mask) const {
    const double scale = part_.attention_scale > 0
                             ? part_.attention_scale
                             : 1 / std::sqrt(static_cast<double>(part_.head_dim()));
    if (part_.attention_cap == 0) {
      return at::scaled_dot_product_attention(q, k, v, mask, 0.0, false, scale);
    }
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)).to(at::kFloat) * scale;
    const at::Tensor capped = (scores / part_.attention_cap).tanh() * part_.attention_cap;
    const at::Tensor seen = capped.masked_fill(mask.logical_not(), -INFINITY);
    return at::matmul(at::softmax(seen, -1).to(q.scalar_type()), v);
  }

  at::Tensor post_normed(const at::Tensor& y, const at::Tensor& weight) const {
    return weight.defined() ? nn::rms_norm(y, weight, part_.norm_eps) : y;
  }

  at::Tensor block(std::int64_t layer, const at::Tensor& in) {
    const BlockWeights& w = nth(weights_.blocks, layer);
    const double eps = part_.norm_eps;
    const at::Tensor qkv =
        at::linear(nn::norm(in, {w.norm1, w.norm1_bias, eps}), w.qkv, w.qkv_bias);
    const at::Tensor x =
        in + post_normed(closing(attention(layer, qkv), w.proj, w.proj_bias), w.post_norm1);
    at::Tensor wide = at::linear(nn::norm(x, {w.norm2, w.norm2_bias, eps}), w.fc, w.fc_bias);
    if (part_.swiglu) {
      const auto parts = wide.chunk(2, -1);
      const at::Tensor gate =
          part_.gate == Activation::silu
              ? at::silu(parts[0])
              : at::gelu(parts[0], part_.gate == Activation::gelu ? "none" : "tanh");
      wide = gate * parts[1];
    } else if (part_.activation == Activation::relu) {
      wide = at::relu(wide);
    } else {
      wide = at::gelu(wide, part_.activation == Activation::gelu ? "none" : "tanh");
    }
    return x + post_normed(closing(wide, w.proj2, w.proj2_bias), w.post_norm2);
  }

  const DecoderWeights weights_;
  RotaryTable rotary_[2];                  // of layers without a window, and with one
  std::vector<at::Tensor> keys_, values_;  // [slots, kv heads, capacity, d]
  // For the current rows.
  at::Tensor slots_, positions_;
  std::int64_t longest_ = 0, slot_ = 0;
  bool step_ = false;
};

}  // namespace

std::unique_ptr<Decoder> make_plain_decoder(const ModelShape& shape, const DecoderOptions& options,
                                            const ReadParam& read) {
  return std::make_unique<PlainDecoder>(shape, options, read);
}

}  // namespace tessera::models
