#include "tessera/huggingface/shape_json.h"

#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>

#include "tessera/core/errors.h"
#include "tessera/core/lora.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

using Kind = RotaryScaling::Kind;

// Returns the value whose name() is `word`.
template <typename Enum>
Enum named(const nlohmann::json& word, std::span<const Enum> all) {
  for (const Enum each : all) {
    if (word.get<std::string>() == name(each)) return each;
  }
  throw UsageError(str("got ", word.dump(), ", which is not a known value"));
}
template <typename Enum>
Enum named(const nlohmann::json& word, std::initializer_list<Enum> all) {
  return named(word, std::span<const Enum>(all.begin(), all.size()));
}

template <typename T>
void take(const nlohmann::json& json, const char* key, T& into) {
  const auto it = json.find(key);
  if (it == json.end()) return;
  if (std::is_same_v<T, std::int64_t> && !it->is_number_integer()) {
    throw UsageError(str(quote(key), " is ", it->dump(), "; must be a whole number"));
  }
  into = it->get<T>();
}

Biases biases_of(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  return {json.at("qkv").get<bool>(), json.at("out").get<bool>(), json.at("mlp").get<bool>(),
          json.at("norm").get<bool>()};
}

nlohmann::json experts_json(const Experts& experts) {
  nlohmann::json json = {{"count", experts.count},
                         {"per_token", experts.per_token},
                         {"width", experts.width},
                         {"scores", name(experts.scores)},
                         {"normalized", experts.normalized}};
  const Experts plain;
  const auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (value != otherwise) json[key] = value;
  };
  add("shared_width", experts.shared_width, plain.shared_width);
  add("shared_gate", experts.shared_gate, plain.shared_gate);
  add("scale", experts.scale, plain.scale);
  add("selection_bias", experts.selection_bias, plain.selection_bias);
  add("bias_rate", experts.bias_rate, plain.bias_rate);
  add("dense_layers", experts.dense_layers, plain.dense_layers);
  add("balance_loss", experts.balance_loss, plain.balance_loss);
  add("z_loss", experts.z_loss, plain.z_loss);
  add("jitter", experts.jitter, plain.jitter);
  add("capacity", experts.capacity, plain.capacity);
  return json;
}

Experts experts_of(const nlohmann::json& json) {
  if (!json.is_object()) {
    throw UsageError(str("\"experts\" is ", json.dump().substr(0, 80), "; must be an object"));
  }
  Experts experts;
  for (const char* const key : {"count", "per_token", "width"}) json.at(key);  // throws if missing
  take(json, "count", experts.count);
  take(json, "per_token", experts.per_token);
  take(json, "width", experts.width);
  if (json.contains("scores")) {
    experts.scores = named(json["scores"], {RouterScores::softmax, RouterScores::sigmoid});
  }
  take(json, "normalized", experts.normalized);
  take(json, "shared_width", experts.shared_width);
  take(json, "shared_gate", experts.shared_gate);
  take(json, "scale", experts.scale);
  take(json, "selection_bias", experts.selection_bias);
  take(json, "bias_rate", experts.bias_rate);
  take(json, "dense_layers", experts.dense_layers);
  take(json, "balance_loss", experts.balance_loss);
  take(json, "z_loss", experts.z_loss);
  take(json, "jitter", experts.jitter);
  take(json, "capacity", experts.capacity);
  return experts;
}

}  // namespace

std::string shape_json(const ModelShape& shape) {
  const RotaryScaling& scaled = shape.rotary_scaling;
  nlohmann::json scaling = {{"kind", name(scaled.kind)}};
  if (scaled.kind != Kind::none) scaling["factor"] = scaled.factor;
  if (scaled.kind == Kind::llama3) {
    scaling["low_freq_factor"] = scaled.low_freq_factor;
    scaling["high_freq_factor"] = scaled.high_freq_factor;
    scaling["original_positions"] = scaled.original_positions;
  }
  if (scaled.kind == Kind::yarn) {
    scaling["original_positions"] = scaled.original_positions;
    scaling["beta_fast"] = scaled.beta_fast;
    scaling["beta_slow"] = scaled.beta_slow;
    scaling["truncate"] = scaled.truncate;
    scaling["attention_factor"] = scaled.attention_factor;
    scaling["mscale"] = scaled.mscale;
    scaling["mscale_all_dim"] = scaled.mscale_all_dim;
  }
  const Biases& has = shape.biases;
  const nlohmann::json biases = {
      {"qkv", has.qkv}, {"out", has.out}, {"mlp", has.mlp}, {"norm", has.norm}};
  nlohmann::json lora;  // null: no adapters
  if (shape.lora.any()) {
    lora = {{"rank", shape.lora.rank}, {"alpha", shape.lora.alpha}, {"targets", targets_of(shape)}};
    if (shape.lora.dropout > 0) lora["dropout"] = shape.lora.dropout;
  }
  nlohmann::json json = {{"name", shape.name},
                         {"layers", shape.layers},
                         {"hidden", shape.hidden},
                         {"heads", shape.heads},
                         {"kv_heads", shape.kv_heads},
                         {"ffn", shape.ffn},
                         {"vocab", shape.vocab},
                         {"positions", shape.positions},
                         {"swiglu", shape.swiglu},
                         {"biases", biases},
                         {"tied", shape.tied},
                         {"rotary_base", shape.rotary_base},
                         {"norm_eps", shape.norm_eps},
                         {"head_width", shape.head_width},
                         {"activation", name(shape.activation)},
                         {"rotary_scaling", scaling},
                         {"window", shape.window},
                         {"window_from", shape.window_from},
                         {"context", shape.context},
                         {"lora", lora}};
  // Parts that only some families have: absent where the model does not have them.
  const ModelShape plain;
  const auto add = [&](const char* key, const auto& value, const auto& otherwise) {
    if (value != otherwise) json[key] = value;
  };
  add("init_range", shape.init_range, plain.init_range);
  add("window_period", shape.window_period, plain.window_period);
  add("window_rotary_base", shape.window_rotary_base, plain.window_rotary_base);
  add("qk_norm", shape.qk_norm, plain.qk_norm);
  add("post_norms", shape.post_norms, plain.post_norms);
  add("norm_plus_one", shape.norm_plus_one, plain.norm_plus_one);
  add("embedding_scale", shape.embedding_scale, plain.embedding_scale);
  add("attention_scale", shape.attention_scale, plain.attention_scale);
  add("attention_cap", shape.attention_cap, plain.attention_cap);
  add("logit_cap", shape.logit_cap, plain.logit_cap);
  if (shape.experts.any()) json["experts"] = experts_json(shape.experts);
  if (shape.gate != plain.gate) json["gate"] = name(shape.gate);
  if (shape.family != plain.family) json["family"] = name(shape.family);
  return json.dump();
}

ModelShape parse_shape(std::string_view text, const std::string& where) {
  const nlohmann::json json = parse_strictly(text, 8, where);
  if (!json.is_object() || !json.contains("layers")) {
    throw DataError(str(where, " does not describe its model: it was not saved by tessera train"));
  }
  ModelShape shape;
  try {
    take(json, "name", shape.name);
    for (const auto& [key, member] :
         {std::pair("layers", &ModelShape::layers), std::pair("hidden", &ModelShape::hidden),
          std::pair("heads", &ModelShape::heads), std::pair("kv_heads", &ModelShape::kv_heads),
          std::pair("ffn", &ModelShape::ffn), std::pair("vocab", &ModelShape::vocab),
          std::pair("positions", &ModelShape::positions)}) {
      json.at(key);  // throws if it is missing
      take(json, key, shape.*member);
    }
    take(json, "swiglu", shape.swiglu);
    if (json.contains("biases")) shape.biases = biases_of(json["biases"]);
    take(json, "tied", shape.tied);
    take(json, "rotary_base", shape.rotary_base);
    take(json, "norm_eps", shape.norm_eps);
    take(json, "head_width", shape.head_width);
    if (json.contains("activation")) {
      shape.activation =
          named(json["activation"], {Activation::gelu_tanh, Activation::gelu, Activation::relu});
    }
    if (json.contains("rotary_scaling")) {
      const nlohmann::json& scaling = json["rotary_scaling"];
      RotaryScaling& into = shape.rotary_scaling;
      into.kind = named(scaling.at("kind"),
                        {Kind::none, Kind::linear, Kind::llama3, Kind::dynamic, Kind::yarn});
      take(scaling, "factor", into.factor);
      take(scaling, "low_freq_factor", into.low_freq_factor);
      take(scaling, "high_freq_factor", into.high_freq_factor);
      take(scaling, "original_positions", into.original_positions);
      take(scaling, "beta_fast", into.beta_fast);
      take(scaling, "beta_slow", into.beta_slow);
      take(scaling, "truncate", into.truncate);
      take(scaling, "attention_factor", into.attention_factor);
      take(scaling, "mscale", into.mscale);
      take(scaling, "mscale_all_dim", into.mscale_all_dim);
    }
    take(json, "window", shape.window);
    take(json, "window_from", shape.window_from);
    take(json, "context", shape.context);
    take(json, "init_range", shape.init_range);
    take(json, "window_period", shape.window_period);
    take(json, "window_rotary_base", shape.window_rotary_base);
    take(json, "qk_norm", shape.qk_norm);
    take(json, "post_norms", shape.post_norms);
    take(json, "norm_plus_one", shape.norm_plus_one);
    take(json, "embedding_scale", shape.embedding_scale);
    take(json, "attention_scale", shape.attention_scale);
    take(json, "attention_cap", shape.attention_cap);
    take(json, "logit_cap", shape.logit_cap);
    if (json.contains("gate")) {
      shape.gate = named(json["gate"], {Activation::gelu_tanh, Activation::gelu, Activation::silu});
    }
    if (json.contains("family")) {
      shape.family = named(json["family"], std::span<const Family>(kFamilies));
    }
    if (json.contains("experts")) shape.experts = experts_of(json["experts"]);
    if (json.contains("lora") && !json["lora"].is_null()) {
      const nlohmann::json& lora = json["lora"];
      shape.lora = {lora.at("rank").get<std::int64_t>(), lora.at("alpha").get<double>(),
                    lora.at("targets").get<std::string>()};
      take(lora, "dropout", shape.lora.dropout);
    }
    check(shape);
    check_lora(shape);
  } catch (const nlohmann::json::exception& error) {
    throw DataError(str(where, ": cannot read the shape of the model: ", error.what()));
  } catch (const UsageError& error) {
    throw DataError(str(where, ": the shape of the model is invalid: ", error.what()));
  }
  return shape;
}

}  // namespace tessera::huggingface
