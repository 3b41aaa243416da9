// Writes the config.json of a model shape. Rotary positions use the older field names, which all
// versions of transformers read.

#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/config.h"

namespace tessera::huggingface {
namespace {

using Ordered = nlohmann::ordered_json;

[[noreturn]] void refuse_shape(const std::string& why) {
  throw UsageError(
      str("no Hugging Face model family that Tessera writes (gpt2, llama, qwen2, "
          "mistral) has ",
          why));
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

std::string family_of(const ModelShape& shape) {
  const Biases& has = shape.biases;
  if (!shape.rotary()) {
    if (shape.swiglu) refuse_shape("learned positions and a gated MLP");
    if (has != Biases(true)) refuse_shape("learned positions and not all of the biases");
    if (shape.window > 0) refuse_shape("learned positions and a window");
    if (shape.kv_heads != shape.heads) refuse_shape("learned positions and fewer kv-heads");
    if (shape.head_dim() * shape.heads != shape.hidden) {
      refuse_shape("learned positions and a total head width that differs from the hidden size");
    }
    return "gpt2";
  }
  if (!shape.swiglu) refuse_shape("rotary positions and an MLP without a gate");
  if (has.norm) refuse_shape("rotary positions and norms with a shift");
  if (shape.window > 0 && shape.window_from < shape.layers) {
    if (has.qkv && !has.out && !has.mlp) return "qwen2";
    if (has.any_linear()) refuse_shape("a window and biases other than those of q, k and v");
    if (shape.window_from > 0) refuse_shape("a window in some layers only and no biases");
    return "mistral";
  }
  if (has.qkv == has.out) return "llama";
  if (has.qkv && !has.mlp) return "qwen2";
  refuse_shape("these biases");
}

std::string config_json(const ModelShape& shape, const std::string& dtype) {
  check(shape);
  const std::string family = family_of(shape);
  Ordered json;
  if (family == "gpt2") {
    const char* const act = shape.activation == Activation::gelu_tanh ? "gelu_new"
                            : shape.activation == Activation::gelu    ? "gelu"
                                                                      : "relu";
    json = {{"architectures", {"GPT2LMHeadModel"}},
            {"model_type", family},
            {"n_layer", shape.layers},
            {"n_embd", shape.hidden},
            {"n_head", shape.heads},
            {"n_inner", shape.ffn},
            {"n_positions", shape.positions},
            {"vocab_size", shape.vocab},
            {"activation_function", act},
            {"layer_norm_epsilon", shape.norm_eps},
            {"initializer_range", shape.init_range},
            // Tessera's default in training.
            {"attn_pdrop", 0.0},
            {"embd_pdrop", 0.0},
            {"resid_pdrop", 0.0}};
  } else {
    json = {{"architectures",
             {family == "llama"   ? "LlamaForCausalLM"
              : family == "qwen2" ? "Qwen2ForCausalLM"
                                  : "MistralForCausalLM"}},
            {"model_type", family},
            {"num_hidden_layers", shape.layers},
            {"hidden_size", shape.hidden},
            {"num_attention_heads", shape.heads},
            {"num_key_value_heads", shape.kv_heads},
            {"head_dim", shape.head_dim()},
            {"intermediate_size", shape.ffn},
            {"vocab_size", shape.vocab},
            // Default of transformers for models without a context length.
            {"max_position_embeddings", shape.context > 0 ? shape.context : 2048},
            {"hidden_act", "silu"},
            {"rms_norm_eps", shape.norm_eps},
            {"initializer_range", shape.init_range},
            {"rope_theta", shape.rotary_base},
            {"rope_scaling", scaling_json(shape.rotary_scaling)},
            {"attention_dropout", 0.0}};
    if (family == "llama") {
      json["attention_bias"] = shape.biases.qkv;
      json["mlp_bias"] = shape.biases.mlp;
    } else if (family == "mistral") {
      json["sliding_window"] = shape.window;
    } else {
      const bool slides = shape.window > 0 && shape.window_from < shape.layers;
      json["use_sliding_window"] = slides;
      json["sliding_window"] = slides ? Ordered(shape.window) : Ordered(nullptr);
      json["max_window_layers"] = slides ? shape.window_from : shape.layers;
    }
  }
  json["tie_word_embeddings"] = shape.tied;
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = dtype;
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace tessera::huggingface
