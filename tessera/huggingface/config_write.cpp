// Writes the config.json of a model shape. Rotary positions use the older field names, which all
// versions of transformers read.

#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/config_experts.h"
#include "tessera/huggingface/families.h"
#include "tessera/huggingface/model_config.h"

namespace tessera::huggingface {
namespace {

using Ordered = nlohmann::ordered_json;

[[noreturn]] void refuse_shape(const std::string& why) {
  throw UsageError(str("no Hugging Face model family that Tessera writes has ", why));
}

Ordered yarn_json(const RotaryScaling& scaling) {
  Ordered json = {{"rope_type", "yarn"},
                  {"factor", scaling.factor},
                  {"original_max_position_embeddings", scaling.original_positions},
                  {"beta_fast", scaling.beta_fast},
                  {"beta_slow", scaling.beta_slow}};
  // Unset fields are left out: not every version accepts null.
  if (scaling.attention_factor != 0) json["attention_factor"] = scaling.attention_factor;
  if (scaling.mscale != 0) json["mscale"] = scaling.mscale;
  if (scaling.mscale_all_dim != 0) json["mscale_all_dim"] = scaling.mscale_all_dim;
  if (!scaling.truncate) json["truncate"] = false;
  return json;
}

Ordered scaling_json(const RotaryScaling& scaling) {
  switch (scaling.kind) {
    case RotaryScaling::Kind::none: return nullptr;
    case RotaryScaling::Kind::linear: return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RotaryScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_positions}};
    case RotaryScaling::Kind::dynamic:
      return {{"rope_type", "dynamic"}, {"factor", scaling.factor}};
    case RotaryScaling::Kind::yarn: return yarn_json(scaling);
  }
  return nullptr;
}

}  // namespace

namespace {

using WindowLayers = FamilyWindows::Layers;

// Returns the part of the model that the family does not have, or "".
std::string mismatch(const ModelShape& m, Family family) {
  const Biases& has = m.biases;
  if (const std::string experts = experts_mismatch(m, family); !experts.empty()) return experts;
  if (family == Family::gpt2) {
    if (m.rotary()) return "rotary positions";
    if (m.swiglu) return "learned positions and a gated MLP";
    if (has != Biases(true)) return "learned positions and not all of the biases";
    if (m.window > 0) return "learned positions and a window";
    if (m.kv_heads != m.heads) return "learned positions and fewer kv-heads";
    if (m.head_dim() * m.heads != m.hidden) {
      return "learned positions and a total head width that differs from the hidden size";
    }
    return "";
  }
  const FamilyFormat& format = format_of(family);
  const bool gemma = format.gemma;
  const WindowLayers windows = format.windows.layers;
  const double scale = gemma ? std::sqrt(static_cast<double>(m.hidden)) : 1;
  if (!m.rotary()) return "learned positions";
  if (!m.swiglu) return "rotary positions and an MLP without a gate";
  if (has.norm) return "rotary positions and norms with a shift";
  if (m.post_norms != gemma || m.norm_plus_one != gemma || m.embedding_scale != scale ||
      (!gemma && (m.attention_scale > 0 || m.logit_cap > 0)) ||
      (!gemma && windows != WindowLayers::from_layer && m.window_period > 0) ||
      (format.attention_cap == 0 && m.attention_cap > 0)) {
    return "only some of the parts of Gemma";
  }
  if (m.qk_norm != format.qk_norm) {
    return m.qk_norm ? "norms of queries and keys" : "no norms of queries and keys";
  }
  if ((m.window_rotary_base > 0) != (format.window_rotary_base > 0)) {
    return "another rotary base for layers with a window";
  }
  switch (format.biases) {
    case FamilyBiases::none:
      if (!has.any_linear()) break;
      return format.experts ? "experts and biases"
                            : "a window and biases other than those of q, k and v";
    case FamilyBiases::qkv:
      if (has.qkv && !has.out && !has.mlp) break;
      return "these biases";
    case FamilyBiases::by_field:
      if (has.qkv == has.out && (format.mlp_biases || !has.mlp)) break;
      return "these biases";
  }
  if (m.window > 0 && m.window_from < m.layers) {
    if (windows == WindowLayers::none) return "a window in all layers";
    if (windows == WindowLayers::all && m.window_from > 0) {
      return format.experts ? "experts and a window in some layers only"
                            : "a window in some layers only and no biases";
    }
  }
  if (!format.rotary_scaling && m.rotary_scaling.kind != RotaryScaling::Kind::none) {
    return "scaled rotary positions";
  }
  return "";
}

}  // namespace

Family family_of(const ModelShape& shape) {
  if (shape.family != Family::none) {
    const std::string problem = mismatch(shape, shape.family);
    if (!problem.empty()) refuse_shape(problem);
    return shape.family;
  }
  if (shape.experts.any()) {
    const Family family = expert_family(shape);
    const std::string reason = mismatch(shape, family);
    if (!reason.empty()) refuse_shape(reason);
    return family;
  }
  std::string problem;
  for (const Family family : {Family::gpt2, Family::qwen3, Family::gemma2, Family::gemma3,
                              Family::llama, Family::qwen2, Family::mistral}) {
    const std::string reason = mismatch(shape, family);
    if (reason.empty()) return family;
    if ((family == Family::gpt2) != shape.rotary()) problem = reason;
  }
  refuse_shape(problem);
}

namespace {

Ordered gpt2_json(const ModelShape& shape) {
  const char* const act = shape.activation == Activation::gelu_tanh ? "gelu_new"
                          : shape.activation == Activation::gelu    ? "gelu"
                                                                    : "relu";
  return {{"architectures", {format_of(Family::gpt2).class_name}},
          {"model_type", name(Family::gpt2)},
          {"n_layer", shape.layers},
          {"n_embd", shape.hidden},
          {"n_head", shape.heads},
          {"n_inner", shape.ffn},
          {"n_positions", shape.positions},
          {"vocab_size", shape.vocab},
          {"activation_function", act},
          {"layer_norm_epsilon", shape.norm_eps},
          {"initializer_range", shape.init_range},
          // Tessera's models train without dropout by default.
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0}};
}

void add_layer_types(Ordered& json, const ModelShape& shape) {
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    json["layer_types"].push_back(shape.window_of(layer) > 0 ? "sliding_attention"
                                                             : "full_attention");
  }
}

void add_gemma(Ordered& json, const ModelShape& shape) {
  const double scale = shape.attention_scale;
  const double scalar = scale > 0 ? 1 / (scale * scale) : static_cast<double>(shape.head_dim());
  const double whole = std::round(scalar);
  const bool is_whole = std::abs(scalar - whole) < 1e-9 * whole;
  json["query_pre_attn_scalar"] =
      is_whole ? Ordered(static_cast<std::int64_t>(whole)) : Ordered(scalar);
  const auto cap = [](double value) { return value > 0 ? Ordered(value) : Ordered(nullptr); };
  json["final_logit_softcapping"] = cap(shape.logit_cap);
  json["attn_logit_softcapping"] = cap(shape.attention_cap);
  json["sliding_window"] = shape.window > 0 ? shape.window : std::int64_t{4096};
  add_layer_types(json, shape);
  if (shape.window_rotary_base > 0) json["rope_local_base_freq"] = shape.window_rotary_base;
}

void add_windows(Ordered& json, const ModelShape& shape, const FamilyWindows& format) {
  if (format.layers == WindowLayers::none) return;
  const bool slides = shape.window > 0 && shape.window_from < shape.layers;
  if (format.has_switch) json["use_sliding_window"] = slides;
  json["sliding_window"] = slides ? Ordered(shape.window) : Ordered(nullptr);
  if (format.layers != WindowLayers::from_layer) return;
  json["max_window_layers"] = slides ? shape.window_from : shape.layers;
  if (slides && shape.window_period > 0) add_layer_types(json, shape);
}

Ordered llama_json(const ModelShape& shape, Family family) {
  const char* const act = shape.gate == Activation::silu   ? "silu"
                          : shape.gate == Activation::gelu ? "gelu"
                                                           : "gelu_pytorch_tanh";
  const FamilyFormat& format = format_of(family);
  Ordered json = {{"architectures", {format.class_name}},
                  {"model_type", name(family)},
                  {"num_hidden_layers", shape.layers},
                  {"hidden_size", shape.hidden},
                  {"num_attention_heads", shape.heads},
                  {"num_key_value_heads", shape.kv_heads},
                  {"head_dim", shape.head_dim()},
                  {"intermediate_size", shape.ffn},
                  {"vocab_size", shape.vocab},
                  // Without a context length the config has the default of transformers.
                  {"max_position_embeddings", shape.context > 0 ? shape.context : 2048},
                  {"hidden_act", act},
                  {"rms_norm_eps", shape.norm_eps},
                  {"initializer_range", shape.init_range},
                  {"rope_theta", shape.rotary_base},
                  {"rope_scaling", scaling_json(shape.rotary_scaling)},
                  {"attention_dropout", 0.0}};
  if (format.gemma) {
    json["hidden_activation"] = json["hidden_act"];
    json.erase("hidden_act");
  }
  if (format.biases == FamilyBiases::by_field) json["attention_bias"] = shape.biases.qkv;
  if (format.mlp_biases) json["mlp_bias"] = shape.biases.mlp;
  if (format.gemma) {
    add_gemma(json, shape);
  } else {
    add_windows(json, shape, format.windows);
  }
  if (family == Family::phi3) {
    json["original_max_position_embeddings"] = json["max_position_embeddings"];
    json["resid_pdrop"] = json["embd_pdrop"] = 0.0;
    json["pad_token_id"] = nullptr;  // the default of transformers may exceed the vocabulary
  }
  write_experts(json, shape, family);
  return json;
}

}  // namespace

std::string config_json(const ModelShape& shape, const std::string& dtype) {
  check(shape);
  const Family family = family_of(shape);
  Ordered json = family == Family::gpt2 ? gpt2_json(shape) : llama_json(shape, family);
  json["tie_word_embeddings"] = shape.tied;
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = dtype;
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace tessera::huggingface
