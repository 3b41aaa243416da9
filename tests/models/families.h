#pragma once

// Small models of every family, and a reference network in double precision.

#include <torch/types.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::models::test {

using Params = std::map<std::string, at::Tensor>;

inline ModelShape small_llama(const char* name, std::int64_t vocab = 101) {
  ModelShape shape;
  shape.name = name;
  shape.layers = 3;
  shape.hidden = 32;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.ffn = 44;
  shape.vocab = vocab;
  shape.swiglu = true;
  shape.biases = false;
  shape.tied = false;
  return shape;
}

// The default vocabulary is not divisible by any number of ranks.
inline std::vector<ModelShape> families(std::int64_t vocab = 101) {
  std::vector<ModelShape> all;
  ModelShape gpt = gpt_shape(3, 32, 4, vocab, 64);
  gpt.name = "gpt";
  all.push_back(gpt);
  gpt.name = "gpt with exact gelu, a head of its own";
  gpt.activation = Activation::gelu;
  gpt.tied = false;
  all.push_back(gpt);
  gpt.name = "gpt with relu and wide heads";
  gpt.activation = Activation::relu;
  gpt.head_width = 12;
  gpt.tied = true;
  all.push_back(gpt);
  ModelShape llama = small_llama("llama 3.1", vocab);
  llama.rotary_scaling = {RotaryScaling::Kind::llama3, 4, 1, 4, 16};
  llama.rotary_base = 50;
  all.push_back(llama);
  llama = small_llama("llama with biases", vocab);
  llama.biases = Biases(true, true, true, false);
  llama.rotary_scaling = {RotaryScaling::Kind::linear, 2};
  llama.head_width = 6;
  all.push_back(llama);
  ModelShape qwen = small_llama("qwen2.5", vocab);
  qwen.biases.qkv = true;
  qwen.tied = true;
  qwen.norm_eps = 1e-6;
  qwen.kv_heads = 1;
  all.push_back(qwen);
  qwen.name = "qwen2.5 with yarn, and a window in later layers";
  qwen.window = 5;
  qwen.window_from = 1;
  qwen.rotary_base = 50;
  qwen.rotary_scaling = {RotaryScaling::Kind::yarn, 4, 1, 4, 64};
  qwen.rotary_scaling.beta_fast = 4;
  all.push_back(qwen);
  ModelShape mistral = small_llama("mistral", vocab);
  mistral.window = 7;
  all.push_back(mistral);
  ModelShape qwen3 = small_llama("qwen3", vocab);
  qwen3.qk_norm = true;
  qwen3.head_width = 12;
  qwen3.norm_eps = 1e-6;
  all.push_back(qwen3);
  ModelShape gemma = small_llama("gemma 2", vocab);
  gemma.tied = gemma.norm_plus_one = gemma.post_norms = true;
  gemma.gate = Activation::gelu_tanh;
  gemma.head_width = 6;
  gemma.window = 5;
  gemma.window_period = 2;
  gemma.embedding_scale = std::sqrt(32.0);
  gemma.attention_scale = 0.3;
  gemma.attention_cap = 2;
  gemma.logit_cap = 3;
  all.push_back(gemma);
  gemma.name = "gemma 3";
  gemma.attention_cap = gemma.logit_cap = 0;
  gemma.qk_norm = true;
  gemma.kv_heads = 1;
  gemma.window_period = 3;
  gemma.rotary_base = 50;
  gemma.rotary_scaling = {RotaryScaling::Kind::linear, 2};
  gemma.window_rotary_base = 20;
  all.push_back(gemma);
  return all;
}

// Models with experts: the kinds of routers, shared experts, layers without experts.
inline std::vector<ModelShape> sparse_families(std::int64_t vocab = 101) {
  std::vector<ModelShape> all;
  ModelShape mixtral = small_llama("mixtral", vocab);
  mixtral.window = 7;
  mixtral.experts = {.count = 5, .per_token = 2, .width = 20};
  all.push_back(mixtral);
  ModelShape qwen3 = small_llama("qwen3-moe", vocab);
  qwen3.qk_norm = true;
  qwen3.head_width = 12;
  qwen3.kv_heads = 1;
  qwen3.experts = {.count = 7, .per_token = 3, .width = 12, .normalized = false};
  qwen3.experts.dense_layers = 1;
  all.push_back(qwen3);
  ModelShape dots = small_llama("dots1", vocab);
  dots.qk_norm = dots.tied = true;
  dots.experts = {.count = 6, .per_token = 2, .width = 8, .shared_width = 16};
  dots.experts.scores = RouterScores::sigmoid;
  dots.experts.scale = 2.5;
  dots.experts.selection_bias = true;
  dots.experts.dense_layers = 1;
  all.push_back(dots);
  ModelShape gpt = gpt_shape(3, 32, 4, vocab, 64);
  gpt.name = "gpt with biases, a gate of the shared expert, and every expert used";
  gpt.experts = {.count = 3, .per_token = 3, .width = 28, .shared_width = 12, .shared_gate = true};
  all.push_back(gpt);
  ModelShape gemma = small_llama("experts between two norms", vocab);
  gemma.norm_plus_one = gemma.post_norms = true;
  gemma.gate = Activation::gelu_tanh;
  gemma.experts = {.count = 4, .per_token = 1, .width = 24, .normalized = false};
  all.push_back(gemma);
  return all;
}

// Returns the sum of cross entropies. `starts`: beginnings of documents (undefined: none).
inline at::Tensor family_loss(const ModelShape& s, Params& p, const at::Tensor& ids,
                              const at::Tensor& targets, const at::Tensor& starts = {}) {
  const std::int64_t batch = ids.size(0), tokens = ids.size(1), d = s.head_dim();
  const at::Tensor at = torch::arange(tokens, torch::kLong);
  const at::Tensor begin =
      starts.defined() ? starts.to(torch::kLong) : torch::zeros({batch, tokens}, torch::kLong);
  const auto linear = [&](const at::Tensor& x, const std::string& name) {
    at::Tensor y = at::matmul(x, p[name + ".weight"].t());
    return p.count(name + ".bias") ? y + p[name + ".bias"] : y;
  };
  const auto norm = [&](const at::Tensor& x, const std::string& name) {
    const at::Tensor c = s.biases.norm ? x - x.mean(-1, true) : x;
    const at::Tensor unit = c / (c.square().mean(-1, true) + s.norm_eps).sqrt();
    const at::Tensor y = unit * (p[name + ".weight"] + (s.norm_plus_one ? 1 : 0));
    return s.biases.norm ? y + p[name + ".bias"] : y;
  };
  const auto turn = [&](const at::Tensor& x, std::int64_t layer) {  // [B, T, H, d]
    const bool own_base = s.window_of(layer) > 0 && s.window_rotary_base > 0;
    const RotaryScaling scaling = own_base ? RotaryScaling() : s.rotary_scaling;
    const auto rates = torch::tensor(
        rotary_rates(d, own_base ? s.window_rotary_base : s.rotary_base, scaling), torch::kDouble);
    const at::Tensor angle = (at.view({tokens, 1}) * rates).view({tokens, 1, d / 2});
    const at::Tensor a = x.narrow(3, 0, d / 2), b = x.narrow(3, d / 2, d / 2);
    return rotary_gain(scaling) *
           at::cat({a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()}, 3);
  };
  const auto capped = [](const at::Tensor& x, double cap) {
    return cap > 0 ? (x / cap).tanh() * cap : x;
  };
  at::Tensor x = torch::embedding(p["tok.weight"], ids) * s.embedding_scale;
  if (s.positions > 0) x = x + torch::embedding(p["pos.weight"], at - begin);
  for (std::int64_t layer = 0; layer < s.layers; ++layer) {
    const std::string block = "blocks." + std::to_string(layer) + ".";
    const at::Tensor qkv = linear(norm(x, block + "norm1"), block + "qkv");
    const auto heads = [&](std::int64_t first, std::int64_t n) {
      return qkv.narrow(2, first * d, n * d).view({batch, tokens, n, d});
    };
    const std::int64_t times = s.heads / s.kv_heads;
    at::Tensor q = heads(0, s.heads), k = heads(s.heads, s.kv_heads);
    if (s.qk_norm) q = norm(q, block + "q_norm"), k = norm(k, block + "k_norm");
    if (s.rotary()) q = turn(q, layer), k = turn(k, layer);
    k = k.repeat_interleave(times, 2);
    const at::Tensor v = heads(s.heads + s.kv_heads, s.kv_heads).repeat_interleave(times, 2);
    at::Tensor seen = (at.view({1, tokens, 1}) >= at) & (begin.unsqueeze(2) <= at);
    if (s.window_of(layer) > 0) seen = seen & (at.view({1, tokens, 1}) - at < s.window_of(layer));
    const double scale =
        s.attention_scale > 0 ? s.attention_scale : 1 / std::sqrt(static_cast<double>(d));
    const at::Tensor scores =
        capped(torch::einsum("bthd,bshd->bhts", {q, k}) * scale, s.attention_cap);
    const at::Tensor p_seen = scores.masked_fill(~seen.unsqueeze(1), -1e300).softmax(-1);
    const at::Tensor mixed = torch::einsum("bhts,bshd->bthd", {p_seen, v});
    const auto post = [&](const at::Tensor& y, const char* name) {
      return s.post_norms ? norm(y, block + name) : y;
    };
    x = x + post(linear(mixed.reshape({batch, tokens, s.heads * d}), block + "proj"), "post_norm1");
    at::Tensor wide = linear(norm(x, block + "norm2"), block + "fc");
    if (s.swiglu) {
      const auto up = wide.chunk(2, -1);
      wide = (s.gate == Activation::silu ? torch::silu(up[0]) : torch::gelu(up[0], "tanh")) * up[1];
    } else if (s.activation == Activation::relu) {
      wide = torch::relu(wide);
    } else {
      wide = torch::gelu(wide, s.activation == Activation::gelu ? "none" : "tanh");
    }
    x = x + post(linear(wide, block + "proj2"), "post_norm2");
  }
  const at::Tensor head = p[s.tied ? "tok.weight" : "head.weight"];
  const at::Tensor logits = capped(at::matmul(norm(x, "norm"), head.t()), s.logit_cap);
  return torch::cross_entropy_loss(logits.view({-1, s.vocab}), targets.reshape({-1}), {},
                                   at::Reduction::Sum, -1);
}

// Three documents in row 0, others in the next rows. The last token of each has no target.
inline at::Tensor packed_starts(std::int64_t rows, std::int64_t tokens) {
  const at::Tensor starts = torch::zeros({rows, tokens}, torch::kInt);
  for (std::int64_t b = 0; b < rows; ++b) {
    std::int64_t begin = 0;
    for (std::int64_t t = 0; t < tokens; ++t) {
      if ((t + 3 * b) % (5 + b) == 4) begin = t;
      starts[b][t] = begin;
    }
  }
  return starts;
}

}  // namespace tessera::models::test
