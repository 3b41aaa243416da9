#include "tessera/core/model_shape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera {
namespace {

ModelShape named_gpt(std::string name, std::int64_t layers, std::int64_t hidden, std::int64_t heads,
                     std::int64_t positions) {
  return {std::move(name), layers,    hidden, heads, heads, 4 * hidden,
          50257,           positions, false,  true,  true};
}

ModelShape named_llama(std::string name, std::int64_t layers, std::int64_t hidden,
                       std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn,
                       std::int64_t vocab, std::int64_t context, double rotary_base = 1e4) {
  ModelShape shape{std::move(name), layers, hidden, heads, kv_heads, ffn,
                   vocab,           0,      true,   false, false,    rotary_base};
  shape.context = context;
  return shape;
}

// Llama 3.1 and 3.2: Llama 3 with scaled rotary positions.
ModelShape rescaled(ModelShape shape, double factor, bool tied = false) {
  shape.rotary_scaling = {RotaryScaling::Kind::llama3, factor, 1, 4, 8192};
  shape.tied = tied;
  return shape;
}

ModelShape named_qwen(std::string name, std::int64_t layers, std::int64_t hidden,
                      std::int64_t heads, std::int64_t kv_heads, std::int64_t ffn,
                      std::int64_t vocab, std::int64_t context, bool tied) {
  ModelShape shape =
      named_llama(std::move(name), layers, hidden, heads, kv_heads, ffn, vocab, context, 1e6);
  shape.biases.qkv = true;
  shape.tied = tied;
  shape.norm_eps = 1e-6;
  return shape;
}

ModelShape with_window(ModelShape shape, std::int64_t window) {
  shape.window = window;
  return shape;
}

// Qwen3: no biases, heads of 128, and a norm over each head of queries and keys.
ModelShape named_qwen3(std::string name, std::int64_t layers, std::int64_t hidden,
                       std::int64_t heads, std::int64_t ffn, bool tied, std::int64_t kv_heads = 8) {
  ModelShape shape =
      named_llama(std::move(name), layers, hidden, heads, kv_heads, ffn, 151936, 40960, 1e6);
  shape.head_width = 128;
  shape.norm_eps = 1e-6;
  shape.qk_norm = true;
  shape.tied = tied;
  shape.family = Family::qwen3;
  return shape;
}

ModelShape of_family(ModelShape shape, Family family) {
  shape.family = family;
  return shape;
}

ModelShape with_experts(ModelShape shape, std::int64_t count, std::int64_t per_token,
                        std::int64_t width, double balance_loss, Family family = Family::none) {
  shape.experts.count = count;
  shape.experts.per_token = per_token;
  shape.experts.width = width;
  shape.experts.balance_loss = balance_loss;
  shape.family = family;
  return shape;
}

// Weights that are the scores themselves, and shared experts of this total width.
ModelShape with_shared(ModelShape shape, std::int64_t width, std::int64_t dense_layers) {
  shape.experts.normalized = false;
  shape.experts.shared_width = width;
  shape.experts.dense_layers = dense_layers;
  return shape;
}

// dots.llm1: experts as in DeepSeek-V3, and attention as in Qwen3.
ModelShape dots_llm1() {
  ModelShape shape = named_llama("dots.llm1", 62, 4096, 32, 32, 10944, 152064, 32768, 1e7);
  shape = with_shared(with_experts(std::move(shape), 128, 6, 1408, 0, Family::dots1), 2816, 1);
  shape.experts.scores = RouterScores::sigmoid;
  shape.experts.normalized = shape.experts.selection_bias = true;
  shape.experts.scale = 2.5;
  shape.qk_norm = true;
  return shape;
}

ModelShape qwen_moe() {
  ModelShape shape = named_qwen("qwen1.5-moe-a2.7b", 24, 2048, 16, 16, 5632, 151936, 8192, false);
  shape = with_shared(with_experts(std::move(shape), 60, 4, 1408, 0.001), 5632, 0);
  shape.experts.shared_gate = true;
  return shape;
}

ModelShape deepseek_moe() {
  ModelShape shape = named_llama("deepseek-moe-16b", 28, 2048, 16, 16, 10944, 102400, 4096);
  shape.norm_eps = 1e-6;
  return with_shared(with_experts(std::move(shape), 64, 6, 1408, 0.001), 2816, 1);
}

ModelShape gemma(ModelShape shape, std::int64_t head_width, std::int64_t window,
                 std::int64_t window_period) {
  shape.head_width = head_width;
  shape.window = window;
  shape.window_period = window_period;
  shape.norm_eps = 1e-6;
  shape.tied = true;
  shape.gate = Activation::gelu_tanh;
  shape.norm_plus_one = shape.post_norms = true;
  shape.embedding_scale = std::sqrt(static_cast<double>(shape.hidden));
  return shape;
}

// Gemma 2: every other layer has a window; scores and logits are capped.
ModelShape gemma2(ModelShape shape, std::int64_t head_width, double query_scalar) {
  shape = gemma(std::move(shape), head_width, 4096, 2);
  if (query_scalar != static_cast<double>(head_width)) {
    shape.attention_scale = 1 / std::sqrt(query_scalar);
  }
  shape.attention_cap = 50;
  shape.logit_cap = 30;
  shape.family = Family::gemma2;
  return shape;
}

// Gemma 3: five layers of six have a window and a rotary base of their own.
ModelShape gemma3(ModelShape shape, std::int64_t window, double factor = 1) {
  shape = gemma(std::move(shape), 256, window, 6);
  shape.qk_norm = true;
  shape.window_rotary_base = 1e4;
  if (factor != 1) shape.rotary_scaling = {RotaryScaling::Kind::linear, factor};
  shape.family = Family::gemma3;
  return shape;
}

}  // namespace

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

const std::vector<ModelShape>& model_shapes() {
  static const std::vector<ModelShape> all = {
      // A vocabulary of 256: bytes, or the digits of a small task.
      {"gpt-tiny", 4, 128, 4, 4, 512, 256, 256, false, true, true},
      named_llama("llama-tiny", 4, 128, 4, 2, 352, 256, 0),
      named_gpt("gpt2-124m", 12, 768, 12, 1024),
      named_gpt("gpt2-355m", 24, 1024, 16, 1024),
      named_gpt("gpt2-774m", 36, 1280, 20, 1024),
      named_gpt("gpt2-xl", 48, 1600, 25, 1024),
      named_gpt("gpt3-125m", 12, 768, 12, 2048),
      named_gpt("gpt3-350m", 24, 1024, 16, 2048),
      named_gpt("gpt3-760m", 24, 1536, 16, 2048),
      named_gpt("gpt3-1.3b", 24, 2048, 16, 2048),  // the paper says 24 heads of 128
      named_gpt("gpt3-2.7b", 32, 2560, 32, 2048),
      named_gpt("gpt3-6.7b", 32, 4096, 32, 2048),
      named_gpt("gpt3-13b", 40, 5120, 40, 2048),  // the paper says 5140
      named_gpt("gpt3-175b", 96, 12288, 96, 2048),
      named_llama("llama2-7b", 32, 4096, 32, 32, 11008, 32000, 4096),
      named_llama("llama2-13b", 40, 5120, 40, 40, 13824, 32000, 4096),
      named_llama("llama2-70b", 80, 8192, 64, 8, 28672, 32000, 4096),
      named_llama("llama3-8b", 32, 4096, 32, 8, 14336, 128256, 8192, 5e5),
      named_llama("llama3-70b", 80, 8192, 64, 8, 28672, 128256, 8192, 5e5),
      rescaled(named_llama("llama3.1-8b", 32, 4096, 32, 8, 14336, 128256, 131072, 5e5), 8),
      rescaled(named_llama("llama3.1-70b", 80, 8192, 64, 8, 28672, 128256, 131072, 5e5), 8),
      rescaled(named_llama("llama3.1-405b", 126, 16384, 128, 8, 53248, 128256, 131072, 5e5), 8),
      rescaled(named_llama("llama3.2-1b", 16, 2048, 32, 8, 8192, 128256, 131072, 5e5), 32, true),
      rescaled(named_llama("llama3.2-3b", 28, 3072, 24, 8, 8192, 128256, 131072, 5e5), 32, true),
      named_qwen("qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 32768, true),
      named_qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, 131072, true),
      named_qwen("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, 131072, false),
      with_window(named_llama("mistral-7b", 32, 4096, 32, 8, 14336, 32000, 32768), 4096),
      named_qwen3("qwen3-0.6b", 28, 1024, 16, 3072, true),
      named_qwen3("qwen3-1.7b", 28, 2048, 16, 6144, true),
      named_qwen3("qwen3-4b", 36, 2560, 32, 9728, true),
      named_qwen3("qwen3-8b", 36, 4096, 32, 12288, false),
      named_qwen3("qwen3-32b", 64, 5120, 64, 25600, false),
      with_experts(named_llama("moe-tiny", 4, 128, 4, 2, 352, 256, 0), 8, 2, 176, 0.01),
      with_experts(named_llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000, 32768, 1e6), 8, 2,
                   14336, 0.02, Family::mixtral),
      with_experts(named_llama("mixtral-8x22b", 56, 6144, 48, 8, 16384, 32000, 65536, 1e6), 8, 2,
                   16384, 0.001, Family::mixtral),
      qwen_moe(),
      with_experts(named_qwen3("qwen3-30b-a3b", 48, 2048, 32, 6144, false, 4), 128, 8, 768, 0.001,
                   Family::qwen3_moe),
      with_experts(named_qwen3("qwen3-235b-a22b", 94, 4096, 64, 12288, false, 4), 128, 8, 1536,
                   0.001, Family::qwen3_moe),
      deepseek_moe(),
      dots_llm1(),
      of_family(with_window(named_llama("phi3-mini", 32, 3072, 32, 32, 8192, 32064, 4096), 2047),
                Family::phi3),
      gemma2(named_llama("gemma2-2b", 26, 2304, 8, 4, 9216, 256000, 8192), 256, 256),
      gemma2(named_llama("gemma2-9b", 42, 3584, 16, 8, 14336, 256000, 8192), 256, 256),
      gemma2(named_llama("gemma2-27b", 46, 4608, 32, 16, 36864, 256000, 8192), 128, 144),
      gemma3(named_llama("gemma3-1b", 26, 1152, 4, 1, 6912, 262144, 32768, 1e6), 512),
      gemma3(named_llama("gemma3-4b", 34, 2560, 8, 4, 10240, 262208, 131072, 1e6), 1024, 8),
  };
  return all;
}

ModelShape find_model_shape(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kOtherNames[] = {
      {"gpt2", "gpt2-124m"},
      {"gpt2-medium", "gpt2-355m"},
      {"gpt2-large", "gpt2-774m"},
      {"gpt2-1558m", "gpt2-xl"}};
  std::string_view own = name;
  for (const auto& [other, ours] : kOtherNames) {
    if (name == other) own = ours;
  }
  std::vector<std::string> names;
  for (const ModelShape& shape : model_shapes()) {
    if (shape.name == own) return shape;
    names.push_back(shape.name);
  }
  throw UsageError(str("model ", quote(name), " is unknown", did_you_mean(name, names),
                       "; must be one of ", join(names, ", "), ", or given by its sizes"));
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
    throw UsageError("a gate of shared experts is given, but there are none", "shared-expert-ffn");
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

ContextKind context_kind_for(const ModelShape& shape, ContextKind asked, int tp, int cp,
                             bool tessera_on_gpu) {
  const std::int64_t heads = shape.heads / tp, kv = std::max<std::int64_t>(1, shape.kv_heads / tp);
  const bool divides = heads % cp == 0 && (kv % cp == 0 || cp % kv == 0);
  switch (asked) {
    case ContextKind::ring:
      if (cp == 1 || shape.attention_cap == 0) return asked;
      throw UsageError(
          "--cp-kind ring: does not support the capped attention scores of this model. "
          "Use --cp-kind ulysses",
          "cp-kind");
    case ContextKind::automatic:
      if (shape.attention_cap == 0 &&
          (tessera_on_gpu ? !divides : heads % cp != 0 || kv % cp != 0)) {
        return ContextKind::ring;
      }
      return context_kind_for(shape, ContextKind::ulysses, tp, cp);
    case ContextKind::ulysses:
      if (divides) return asked;
      throw UsageError(str("--cp-kind ulysses: ", cp, " context-parallel ranks must divide the ",
                           heads, " heads of a tensor-parallel rank, and divide its ", kv,
                           " KV heads or be a multiple of them. Use --cp-kind ring, or another "
                           "--cp"),
                       "cp-kind");
  }
  return asked;
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
