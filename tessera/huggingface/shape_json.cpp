#include "tessera/huggingface/shape_json.h"

#include <nlohmann/json.hpp>
#include <type_traits>

#include "tessera/checkpoint/strict_json.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::huggingface {
namespace {

using Kind = RotaryScaling::Kind;

// Returns the value whose name() is `word`.
template <typename Enum>
Enum named(const nlohmann::json& word, std::initializer_list<Enum> all) {
  for (const Enum each : all) {
    if (word.get<std::string>() == name(each)) return each;
  }
  throw UsageError(str("got ", word.dump(), ", which is not a known value"));
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
  if (shape.init_range != ModelShape().init_range) json["init_range"] = shape.init_range;
  return json.dump();
}

ModelShape parse_shape(std::string_view text, const std::string& where) {
  const nlohmann::json json = checkpoint::parse_strictly(text, 8, where);
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
