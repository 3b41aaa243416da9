#include "tessera/core/model_shape.h"

#include <algorithm>
#include <cmath>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
const char* name(Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::gelu: return "gelu";
    case Activation::relu: return "relu";
    case Activation::silu: return "silu";
  }
  return "?";
}

const char* name(RouterScores scores) {
  switch (scores) {
    case RouterScores::softmax: return "softmax";
    case RouterScores::sigmoid: return "sigmoid";
  }
  return "?";
}

const char* name(Family family) {
  switch (family) {
    case Family::none: return "";
    case Family::gpt2: return "gpt2";
    case Family::llama: return "llama";
    case Family::qwen2: return "qwen2";
    case Family::mistral: return "mistral";
    case Family::qwen3: return "qwen3";
    case Family::phi3: return "phi3";
    case Family::gemma2: return "gemma2";
    case Family::gemma3: return "gemma3_text";
    case Family::mixtral: return "mixtral";
    case Family::qwen3_moe: return "qwen3_moe";
    case Family::dots1: return "dots1";
  }
  return "?";
}

std::int64_t ModelShape::window_layers() const {
  std::int64_t count = 0;
  for (std::int64_t layer = 0; layer < layers; ++layer) count += window_of(layer) > 0 ? 1 : 0;
  return count;
}

// Number of parameters of a layer except those of its MLP or experts.
static std::int64_t attention_params(const ModelShape& shape) {
  const std::int64_t q = shape.q_width(), qkv = q + 2 * shape.kv_width();
  const std::int64_t norms =
      (shape.biases.norm ? 4 : 2) * shape.hidden * (shape.post_norms ? 2 : 1);
  return shape.hidden * (qkv + q) + norms + (shape.qk_norm ? 2 * shape.head_dim() : 0) +
         (shape.biases.qkv ? qkv : 0) + (shape.biases.out ? shape.hidden : 0);
}

static std::int64_t mlp_params(const ModelShape& shape, std::int64_t width) {
  const std::int64_t up = (shape.swiglu ? 2 : 1) * width;
  return shape.hidden * (up + width) + (shape.biases.mlp ? up + shape.hidden : 0);
}

// Number of parameters of a layer's router and `count` of its experts.
static std::int64_t expert_params(const ModelShape& shape, std::int64_t count) {
  const Experts& experts = shape.experts;
  const std::int64_t shared =
      experts.shared_width > 0 ? mlp_params(shape, experts.shared_width) : 0;
  return shape.hidden * experts.count + count * mlp_params(shape, experts.width) + shared +
         (experts.shared_gate ? shape.hidden : 0);
}

std::int64_t ModelShape::layer_params() const {
  return attention_params(*this) + mlp_params(*this, ffn);
}

std::int64_t ModelShape::expert_layer_params() const {
  return attention_params(*this) + expert_params(*this, experts.count);
}

std::int64_t ModelShape::active_layer_params() const {
  return attention_params(*this) + expert_params(*this, experts.per_token);
}

std::int64_t ModelShape::expert_layers() const {
  return experts.any() ? layers - std::min(layers, experts.dense_layers) : 0;
}

std::int64_t ModelShape::block_params() const {
  const std::int64_t sparse = expert_layers();
  return (layers - sparse) * layer_params() + (sparse > 0 ? sparse * expert_layer_params() : 0);
}

std::int64_t ModelShape::active_params() const {
  return params() - expert_layers() * (expert_layer_params() - active_layer_params());
}

double ModelShape::keys_seen(std::int64_t tokens) const {
  const auto all = static_cast<double>(tokens), near = static_cast<double>(window);
  if (window == 0 || window >= tokens) return all;
  const double windowed_share = static_cast<double>(window_layers()) / static_cast<double>(layers);
  return all + windowed_share * (2 * near - near * near / all - all);
}

std::int64_t ModelShape::embedding_params() const { return (vocab + positions) * hidden; }
std::int64_t ModelShape::final_norm_params() const { return (biases.norm ? 2 : 1) * hidden; }
std::int64_t ModelShape::head_params() const { return tied ? 0 : vocab * hidden; }
std::int64_t ModelShape::params() const {
  return block_params() + embedding_params() + final_norm_params() + head_params();
}

ModelShape gpt_shape(std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t vocab, std::int64_t positions) {
  ModelShape shape;
  shape.layers = layers;
  shape.hidden = hidden;
  shape.heads = shape.kv_heads = heads;
  shape.ffn = 1;
  shape.vocab = vocab;
  shape.positions = positions;
  check(shape);  // before anything is multiplied
  shape.ffn = 4 * hidden;
  return shape;
}

namespace {

void check_rotary(const ModelShape& shape) {
  check(shape.rotary_scaling, shape.rotary_base);
  if (shape.head_dim() % 2 != 0) {
    throw UsageError(str("the heads have width ", shape.head_dim(),
                         "; rotary positions rotate pairs of elements and need an even width"));
  }
  if (shape.rotary_scaling.kind == RotaryScaling::Kind::dynamic && shape.context < 1) {
    throw UsageError(str("dynamic rotary scaling needs the context length of the model, but it is ",
                         shape.context, "; must be at least 1"));
  }
}

}  // namespace

static void check_experts(const ModelShape& shape) {
  const Experts& experts = shape.experts;
  if (!experts.any()) {
    if (experts == Experts()) return;
    throw UsageError(
        "settings of experts are given, but the model has none; set the number of experts",
        "experts");
  }
  const auto within = [](const char* what, std::int64_t value, std::int64_t least,
                         std::int64_t most) {
    if (value >= least && value <= most) return;
    throw UsageError(str(what, " is ", value, "; must be ", least, " to ", most), what);
  };
  within("experts", experts.count, 1, 100'000);
  within("experts-per-token", experts.per_token, 1, experts.count);
  within("expert-ffn", experts.width, 1, 8'000'000);
  within("shared-expert-ffn", experts.shared_width, 0, 8'000'000);
  within("dense-layers", experts.dense_layers, 0, shape.layers);
  // Lists of parameters and tensors stay in memory, and no count overflows 64 bits.
  constexpr std::int64_t kMostExperts = 1'000'000, kMostParams = std::int64_t{1} << 60;
  if (experts.count > kMostExperts / shape.layers) {
    throw UsageError(str("experts is ", experts.count, " in ", shape.layers,
                         " layers; must be at most ", kMostExperts, " in all layers together"),
                     "experts");
  }
  const auto as_real = [](std::int64_t value) { return static_cast<double>(value); };
  const double params =
      as_real(shape.layers) * as_real(shape.hidden + 1) * 3 *
      (as_real(experts.count + 1) * as_real(experts.width + 1) + as_real(experts.shared_width + 1));
  if (params > as_real(kMostParams)) {
    throw UsageError(str("experts is ", experts.count, " of width ", experts.width, " in ",
                         shape.layers, " layers, which have more than 10^18 parameters"),
                     "experts");
  }
  const auto at_least_0 = [](const char* what, double value, double most) {
    if (value >= 0 && value <= most) return;
    throw UsageError(str(what, " is ", value, "; must be 0 to ", most), what);
  };
  at_least_0("balance-loss", experts.balance_loss, 1e6);
  at_least_0("z-loss", experts.z_loss, 1e6);
  at_least_0("balance-bias-rate", experts.bias_rate, 1e6);
  at_least_0("router-jitter", experts.jitter, 0.99);
  at_least_0("expert-capacity", experts.capacity, 1e6);
  at_least_0("the factor of the experts' sum", experts.scale, 1e6);
  if (experts.shared_gate && experts.shared_width == 0) {
    throw UsageError(
        "the model has a gate of shared experts, but no shared experts: their width is 0",
        "shared-expert-ffn");
  }
  if (experts.bias_rate > 0 && !experts.selection_bias) {
    throw UsageError("balance-bias-rate is given, but the experts are selected without a bias",
                     "balance-bias-rate");
  }
}

void check(const ModelShape& shape) {
  const auto within = [](const char* what, std::int64_t value, std::int64_t least,
                         std::int64_t most) {
    if (value < least || value > most) {
      throw UsageError(str(what, " is ", value, "; must be ", least, " to ", most), what);
    }
  };
  // Within these bounds no count overflows 64 bits: 10^5 · (40 · 10^12) < 2^63.
  within("layers", shape.layers, 1, 100'000);
  within("hidden", shape.hidden, 1, 1'000'000);
  within("heads", shape.heads, 1, 100'000);
  within("kv-heads", shape.kv_heads, 1, shape.heads);
  within("ffn", shape.ffn, 1, 8'000'000);
  within("vocab", shape.vocab, 1, 100'000'000);
  within("a head's width", shape.head_width, 0, 4'000'000 / shape.heads);
  within("positions", shape.positions, 0, std::int64_t{1} << 40);
  within("window", shape.window, 0, std::int64_t{1} << 40);
  within("the first layer with a window", shape.window_from, 0, shape.layers);
  within("the period of layers without a window", shape.window_period, 0, 100'000);
  if (shape.head_width == 0 && shape.hidden % shape.heads != 0) {
    throw UsageError(
        str("hidden is ", shape.hidden, "; must be a multiple of the ", shape.heads, " heads"),
        "hidden");
  }
  if (shape.heads % shape.kv_heads != 0) {
    throw UsageError(
        str("heads is ", shape.heads, "; must be a multiple of the ", shape.kv_heads, " kv-heads"),
        "heads");
  }
  const auto positive = [](const char* what, double value, bool zero) {
    if (std::isfinite(value) && (value > 0 || (zero && value == 0))) return;
    throw UsageError(str(what, " is ", value, "; must be a number greater than 0",
                         zero ? ", or 0 for none" : ""));
  };
  positive("the embedding's scale", shape.embedding_scale, false);
  positive("attention's scale", shape.attention_scale, true);
  positive("attention's soft cap", shape.attention_cap, true);
  positive("the logits' soft cap", shape.logit_cap, true);
  positive("the rotary base of layers with a window", shape.window_rotary_base, true);
  if ((shape.norm_plus_one || shape.post_norms) && shape.biases.norm) {
    throw UsageError(
        "norms that multiply by 1 + weight, and norms behind a branch, must be RMSNorms, which "
        "have no bias");
  }
  if (!(shape.norm_eps >= 0) || !(shape.init_range >= 0)) {
    throw UsageError(str("the epsilon of the norms is ", shape.norm_eps, " and init_range is ",
                         shape.init_range, "; both must be at least 0"));
  }
  if (shape.rotary()) check_rotary(shape);
  check_experts(shape);
}

RankHeads heads_on_rank(const ModelShape& shape, const Axes& axes) {
  const int ranks = axes.size(Axis::tp);
  return {shape.heads / ranks, std::max<std::int64_t>(1, shape.kv_heads / ranks)};
}

ContextKind context_kind_for(const ModelShape& shape, ContextKind asked, const Axes& axes,
                             bool tessera_on_gpu) {
  const auto [heads, kv] = heads_on_rank(shape, axes);
  const int cp = axes.size(Axis::cp);
  const bool divides = heads % cp == 0 && (kv % cp == 0 || cp % kv == 0);
  switch (asked) {
    case ContextKind::ring:
      if (cp == 1 || shape.attention_cap == 0 || !tessera_on_gpu) return asked;
      throw UsageError(
          "--cp-kind ring: does not support the capped attention scores of this model on a GPU. "
          "Use --cp-kind ulysses",
          "cp-kind");
    case ContextKind::automatic:
      if (tessera_on_gpu && shape.attention_cap > 0) break;
      if (tessera_on_gpu ? !divides : heads % cp != 0 || kv % cp != 0) return ContextKind::ring;
      break;
    case ContextKind::ulysses:
      if (divides) return asked;
      throw UsageError(str("--cp-kind ulysses: ", cp, " context-parallel ranks must divide the ",
                           heads, " heads of a tensor-parallel rank, and divide its ", kv,
                           " KV heads or be a multiple of them. Use --cp-kind ring, or another "
                           "--cp"),
                       "cp-kind");
  }
  return context_kind_for(shape, ContextKind::ulysses, axes, tessera_on_gpu);
}

std::string longest_reason(const ModelShape& shape) {
  if (shape.positions > 0) return str("the model has ", shape.positions, " positions");
  return str("with dynamic rotary scaling, the angles of sequences longer than ", shape.longest(),
             " tokens (max_position_embeddings) depend on the length of the sequence");
}

std::string context_note(const ModelShape& shape, std::int64_t tokens) {
  if (!shape.rotary() || shape.context == 0 || tokens <= shape.context) return "";
  return str("sequences of ", tokens, " tokens are longer than the context of the model, ",
             shape.context,
             " (max_position_embeddings): the model runs, but it was not trained on ",
             "positions beyond its context");
}

std::int64_t padded_vocab(std::int64_t vocab, std::int64_t multiple) {
  return (vocab + multiple - 1) / multiple * multiple;
}

}  // namespace tessera
