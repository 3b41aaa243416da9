// Named models.

#include <cmath>
#include <utility>

#include "tessera/core/errors.h"
#include "tessera/core/model_shape.h"
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
      named_gpt("gpt3-1.3b", 24, 2048, 16, 2048),  // the paper has 24 heads of 128
      named_gpt("gpt3-2.7b", 32, 2560, 32, 2048),
      named_gpt("gpt3-6.7b", 32, 4096, 32, 2048),
      named_gpt("gpt3-13b", 40, 5120, 40, 2048),  // 5140 in the paper
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

}  // namespace tessera
