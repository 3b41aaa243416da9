#include "tessera/huggingface/model_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tessera/core/errors.h"
#include "tessera/core/strict_json.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/config_experts.h"
#include "tessera/huggingface/config_fields.h"
#include "tessera/huggingface/families.h"

namespace tessera::huggingface {
namespace {

using RopeKind = RotaryScaling::Kind;

constexpr double kLeastFactor = 1e-6, kMaxFactor = 1e9;

double read_base(Fields& fields, double otherwise) {
  return fields.number("rope_theta", otherwise, 1e-3, 1e15);
}

void refuse_partial(Fields& fields) {
  if (fields.number("partial_rotary_factor", 1, 0, 1) == 1) return;
  throw DataError(str(fields.where(),
                      ": \"partial_rotary_factor\" is not 1. Tessera's rotary "
                      "positions rotate whole heads only."));
}

double factor_of(Fields& rope, const char* name) {
  return rope.needed_number(name, kLeastFactor, kMaxFactor);
}

// Returns the context length: the scaling changes beyond it, or it is the original training length.
std::int64_t context_of(const Fields& rope, const ModelShape& shape, const char* what) {
  if (shape.context > 0) return shape.context;
  throw DataError(str(rope.where(), ": \"max_position_embeddings\" is missing; must be ", what));
}

void read_yarn(Fields& rope, const ModelShape& shape, RotaryScaling& scaling) {
  scaling.factor = factor_of(rope, "factor");
  const auto original = rope.whole("original_max_position_embeddings");
  scaling.original_positions =
      original ? *original
               : context_of(rope, shape, "given, or \"original_max_position_embeddings\"");
  scaling.beta_fast = rope.number("beta_fast", 32, kLeastFactor, kMaxFactor);
  scaling.beta_slow = rope.number("beta_slow", 1, kLeastFactor, kMaxFactor);
  scaling.attention_factor = rope.number("attention_factor", 0, kLeastFactor, kMaxFactor);
  scaling.mscale = rope.number("mscale", 0, 0, kMaxFactor);
  scaling.mscale_all_dim = rope.number("mscale_all_dim", 0, 0, kMaxFactor);
  // Null differs from absent: transformers treats null as false.
  scaling.truncate = rope.flag("truncate", !rope.object().contains("truncate"));
}

void read_scaling(Fields& rope, const ModelShape& shape, RotaryScaling& scaling) {
  const std::string older_kind = rope.word("type", "default");
  const std::string kind = rope.word("rope_type", older_kind);
  if (kind == "default") {
    rope.find("original_max_position_embeddings");
    rope.find("factor");  // unused
  } else if (kind == "linear") {
    scaling.kind = RopeKind::linear;
    scaling.factor = factor_of(rope, "factor");
    rope.find("original_max_position_embeddings");
  } else if (kind == "llama3") {
    scaling.kind = RopeKind::llama3;
    scaling.factor = factor_of(rope, "factor");
    scaling.low_freq_factor = factor_of(rope, "low_freq_factor");
    scaling.high_freq_factor = factor_of(rope, "high_freq_factor");
    scaling.original_positions = rope.needed("original_max_position_embeddings");
  } else if (kind == "dynamic") {
    scaling.kind = RopeKind::dynamic;
    scaling.factor = factor_of(rope, "factor");
    context_of(rope, shape, "the length beyond which the scaling applies");
    rope.find("original_max_position_embeddings");  // unused
  } else if (kind == "yarn") {
    scaling.kind = RopeKind::yarn;
    read_yarn(rope, shape, scaling);
  } else {
    throw DataError(str(rope.where(), ": rotary scaling is ", quote(kind),
                        "; must be default, linear, llama3, dynamic or yarn"));
  }
}

// Gemma 3 has parameters for each kind of layer. Those with a window have no scaling.
void read_rotary_by_layer(Fields& fields, const nlohmann::json& object, ModelShape& shape,
                          std::vector<std::string>& unknown) {
  for (const auto& [kind, parameters] : object.items()) {
    const bool windowed = kind == "sliding_attention";
    if (!parameters.is_object() || (!windowed && kind != "full_attention")) {
      fields.refuse("rope_parameters", object,
                    "an object with objects full_attention and sliding_attention");
    }
    Fields rope(parameters, str(fields.where(), ": rope_parameters: ", kind));
    refuse_partial(rope);
    double& base = windowed ? shape.window_rotary_base : shape.rotary_base;
    base = read_base(rope, base);
    RotaryScaling scaling;
    read_scaling(rope, shape, windowed ? scaling : shape.rotary_scaling);
    if (scaling.kind != RopeKind::none) {
      throw DataError(str(rope.where(), ": scaling of layers with a window is not supported"));
    }
    for (std::string& field : rope.finish(rope_fields())) unknown.push_back(std::move(field));
  }
}

// Reads the rotary position settings: "rope_parameters" of newer files, or "rope_theta" and
// "rope_scaling". `shape` must already have its context. Absent fields have the defaults of
// transformers 5. Appends the quoted names of unknown fields to `unknown`.
void read_rotary(Fields& fields, ModelShape& shape, std::vector<std::string>& unknown) {
  const FamilyFormat& format = format_of(shape.family);
  shape.rotary_base = read_base(fields, format.rotary_base);
  if (format.window_rotary_base > 0) {
    shape.window_rotary_base =
        fields.number("rope_local_base_freq", format.window_rotary_base, 1e-3, 1e15);
    if (const auto* object = fields.find("rope_parameters");
        object != nullptr && object->is_object() &&
        (object->contains("full_attention") || object->contains("sliding_attention"))) {
      return read_rotary_by_layer(fields, *object, shape, unknown);
    }
  }
  const bool newer = fields.has("rope_parameters");
  const bool older = fields.has("rope_scaling");
  refuse_partial(fields);
  if (!newer && !older) return;
  const std::string name = newer ? "rope_parameters" : "rope_scaling";
  const nlohmann::json& object = *fields.find(name);
  if (newer && older && object != *fields.find("rope_scaling")) {
    throw DataError(str(fields.where(),
                        ": \"rope_parameters\" and \"rope_scaling\" differ; only "
                        "one of them may be given"));
  }
  if (!object.is_object()) fields.refuse(name, object, "an object, or null");
  Fields rope(object, str(fields.where(), ": ", name));
  shape.rotary_base = read_base(rope, shape.rotary_base);
  refuse_partial(rope);
  read_scaling(rope, shape, shape.rotary_scaling);
  if (!format.rotary_scaling && shape.rotary_scaling.kind != RopeKind::none) {
    throw DataError(str(rope.where(),
                        ": rotary scaling of Phi-3 is longrope, which Tessera does not ",
                        "support; use a model without scaling (4k context)"));
  }
  for (std::string& field : rope.finish(rope_fields())) unknown.push_back(std::move(field));
}

using Json = nlohmann::json;

constexpr int kMaxConfigDepth = 32;

// Reads "layer_types", if it is there: which layers have a window. They must follow one of the two
// rules of ModelShape, from window_from on or all but every window_period-th.
void read_layer_types(Fields& fields, ModelShape& shape) {
  const Json* const types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != shape.layers) {
    fields.refuse("layer_types", *types,
                  str("a list of ", shape.layers, " strings, one for each layer"));
  }
  std::vector<bool> slides;
  for (const Json& type : *types) {
    if (type != "full_attention" && type != "sliding_attention") {
      fields.refuse("layer_types", type, "full_attention or sliding_attention");
    }
    slides.push_back(type == "sliding_attention");
  }
  const auto first = [&](bool wanted) {
    return std::find(slides.begin(), slides.end(), wanted) - slides.begin();
  };
  const bool any = first(true) < shape.layers;
  if (any && shape.window == 0) {
    throw DataError(str(fields.where(),
                        ": \"layer_types\" has sliding layers, but \"use_sliding_window\" or "
                        "\"sliding_window\" disables the window"));
  }
  if (!any) {
    shape.window = shape.window_from = shape.window_period = 0;
    return;
  }
  const auto follows = [&](std::int64_t from, std::int64_t period) {
    shape.window_from = from;
    shape.window_period = period;
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      if ((shape.window_of(layer) > 0) != slides[static_cast<std::size_t>(layer)]) return false;
    }
    return true;
  };
  if (follows(first(true), 0) || follows(0, first(false) + 1)) return;
  throw DataError(str(fields.where(),
                      ": \"layer_types\" has full attention in other layers than Tessera supports: "
                      "before the first sliding one, or every n-th"));
}

// Reads the attention windows of families that have them.
void read_windows(Fields& fields, ModelShape& shape) {
  // An absent field differs from null: transformers then uses its default.
  const auto window_or = [&](std::int64_t absent) {
    return fields.whole("sliding_window")
        .value_or(fields.object().contains("sliding_window") ? 0 : absent);
  };
  const FamilyWindows& has = format_of(shape.family).windows;
  if (has.layers == FamilyWindows::Layers::none) {
    // Files converted from Qwen2 have its fields, with the window disabled.
    if (fields.object().contains("use_sliding_window") &&
        !fields.flag("use_sliding_window", false)) {
      fields.find("sliding_window");
      fields.find("max_window_layers");
    }
  } else {
    const std::int64_t size = window_or(has.size);
    std::int64_t from = 0, period = has.period;
    if (has.layers == FamilyWindows::Layers::from_layer) {
      from = fields.whole("max_window_layers", 0).value_or(has.from);
    } else if (has.has_switch) {
      fields.find("max_window_layers");  // not read by transformers
    }
    if (has.period_field != nullptr) period = fields.whole(has.period_field).value_or(period);
    if (!has.has_switch || fields.flag("use_sliding_window", false)) {
      shape.window = size;
      shape.window_from = std::min(from, shape.layers);
      shape.window_period = period;
    }
  }
  const bool everywhere = has.layers == FamilyWindows::Layers::all;
  const std::int64_t window = shape.window;
  read_layer_types(fields, shape);
  if (everywhere && (shape.window != window || shape.window_from > 0 || shape.window_period > 0)) {
    throw DataError(
        str(fields.where(),
            ": \"layer_types\" contradicts \"sliding_window\", which applies to all layers"));
  }
  // One way to write each pattern: no period where all layers have a window or none has.
  if (shape.window_layers() == 0) shape.window = 0;
  if (shape.window == 0) shape.window_from = shape.window_period = 0;
  if (shape.window_period > shape.layers) shape.window_period = 0;
}

void read_activation(Fields& fields, ModelShape& shape) {
  const bool gemma = format_of(shape.family).gemma;
  if (gemma) fields.find("hidden_act");  // not read by transformers
  const char* const field = gemma ? "hidden_activation" : "hidden_act";
  const std::string act = fields.word(field, gemma ? "gelu_pytorch_tanh" : "silu");
  if (act == "silu" || act == "swish") {
    shape.gate = Activation::silu;
  } else if (act == "gelu_pytorch_tanh" || act == "gelu_new") {
    shape.gate = Activation::gelu_tanh;
  } else if (act == "gelu") {
    shape.gate = Activation::gelu;
  } else {
    throw DataError(
        str(fields.where(), ": ", quote(field), " is ", quote(act),
            "; must be silu, gelu_pytorch_tanh or gelu, which Tessera's gated MLP has"));
  }
}

void read_gemma(Fields& fields, ModelShape& shape) {
  shape.norm_plus_one = shape.post_norms = true;
  shape.embedding_scale = std::sqrt(static_cast<double>(shape.hidden));
  const double scalar = fields.number("query_pre_attn_scalar", 256, 1e-3, 1e9);
  if (scalar != static_cast<double>(shape.head_dim()))
    shape.attention_scale = 1 / std::sqrt(scalar);
  const auto cap = [&](const char* name, double absent) {
    return fields.number(name, fields.object().contains(name) ? 0 : absent, 1e-3, 1e9);
  };
  const FamilyFormat& format = format_of(shape.family);
  shape.logit_cap = cap("final_logit_softcapping", format.logit_cap);
  // Gemma 3 does not cap the scores; a model with the field is rejected.
  if (format.attention_cap > 0) {
    shape.attention_cap = cap("attn_logit_softcapping", format.attention_cap);
  }
}

void read_llama(Fields& fields, Config& config, std::vector<std::string>& unknown_rope) {
  ModelShape& shape = config.shape;
  const FamilyFormat& format = format_of(shape.family);
  shape.hidden = fields.needed("hidden_size");
  shape.layers = fields.needed("num_hidden_layers");
  shape.heads = fields.needed("num_attention_heads");
  const bool optional = format.optional_kv_heads || fields.object().contains("num_key_value_heads");
  shape.kv_heads = optional ? fields.whole("num_key_value_heads").value_or(shape.heads)
                            : fields.needed("num_key_value_heads");
  shape.ffn = fields.needed("intermediate_size");
  shape.vocab = fields.needed("vocab_size");
  shape.head_width = fields.whole("head_dim").value_or(format.head_width);
  if (shape.head_width * shape.heads == shape.hidden) shape.head_width = 0;
  shape.positions = 0;
  shape.context = fields.whole("max_position_embeddings").value_or(0);
  shape.swiglu = true;
  read_activation(fields, shape);
  const bool attention =
      format.biases == FamilyBiases::by_field && fields.flag("attention_bias", false);
  const bool mlp = format.mlp_biases && fields.flag("mlp_bias", false);
  shape.biases = Biases(attention || format.biases == FamilyBiases::qkv, attention, mlp, false);
  shape.tied = fields.flag("tie_word_embeddings", format.gemma);
  shape.norm_eps = fields.number("rms_norm_eps", format.norm_eps, 0, 1);
  shape.qk_norm = format.qk_norm;
  config.dropout = fields.number("attention_dropout", 0, 0, 1);
  if (shape.family == Family::phi3) {
    for (const char* const name : {"resid_pdrop", "embd_pdrop"}) {
      config.dropout = std::max(config.dropout, fields.number(name, 0, 0, 1));
    }
    fields.find("original_max_position_embeddings");  // of longrope, which is refused
  }
  if (format.gemma) read_gemma(fields, shape);
  read_rotary(fields, shape, unknown_rope);
  read_windows(fields, shape);
  read_experts(fields, shape, config.notes);
}

void read_gpt2(Fields& fields, Config& config) {
  ModelShape& shape = config.shape;
  // Each size has two names. If they differ, the model is ambiguous.
  const auto size = [&](const char* name, const char* other) {
    const auto second = fields.whole(other);
    if (second && fields.has(name) && fields.whole(name) != second) {
      fields.refuse(other, *fields.find(other),
                    str("equal to ", quote(name), ", which is another name for it"));
    }
    return second ? *second : fields.needed(name);
  };
  shape.hidden = size("n_embd", "hidden_size");
  shape.layers = size("n_layer", "num_hidden_layers");
  shape.heads = shape.kv_heads = size("n_head", "num_attention_heads");
  shape.positions = size("n_positions", "max_position_embeddings");
  shape.vocab = fields.needed("vocab_size");
  shape.ffn = fields.whole("n_inner").value_or(4 * shape.hidden);
  const std::string act = fields.word("activation_function", "gelu_new");
  if (act == "gelu_new" || act == "gelu_pytorch_tanh" || act == "gelu_fast") {
    shape.activation = Activation::gelu_tanh;
  } else if (act == "gelu" || act == "gelu_python") {
    shape.activation = Activation::gelu;
  } else if (act == "relu") {
    shape.activation = Activation::relu;
  } else {
    throw DataError(str(fields.where(), ": \"activation_function\" is ", quote(act),
                        "; must be gelu_new, gelu or relu, which Tessera's MLP supports"));
  }
  shape.norm_eps = fields.number("layer_norm_epsilon", 1e-5, 0, 1);
  shape.tied = fields.flag("tie_word_embeddings", true);
  fields.only("scale_attn_weights", true);
  fields.only("scale_attn_by_inverse_layer_idx", false);
  fields.only("add_cross_attention", false);
  fields.flag("reorder_and_upcast_attn", false);  // affects rounding only: ours is in fp32 anyway
  for (const char* const name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    config.dropout = std::max(config.dropout, fields.number(name, 0.1, 0, 1));
  }
}

}  // namespace

Config parse_config(std::string_view json, const std::string& where) {
  const Json object = parse_strictly(json, kMaxConfigDepth, where);
  if (!object.is_object()) throw DataError(str(where, " is not a JSON object"));
  Fields fields(object, where);
  Config config;
  const std::string type = fields.word("model_type", "");
  std::vector<std::string> known;
  for (const Family family : kFamilies) {
    known.emplace_back(name(family));
    if (type == name(family)) config.shape.family = family;
  }
  if (config.shape.family == Family::none) {
    const std::string property = unsupported_property(type);
    throw DataError(str(where, ": \"model_type\" is ", quote(type),
                        property.empty() ? ""
                                         : str(", whose models have ", property,
                                               ", which Tessera does not support"),
                        "; must be one of ", join(known, ", ")));
  }
  std::vector<std::string> unknown_rope;
  if (config.shape.family == Family::gpt2) {
    read_gpt2(fields, config);
  } else {
    read_llama(fields, config, unknown_rope);
  }
  config.shape.init_range = fields.number("initializer_range", 0.02, 0, 1e3);
  fields.only("is_encoder_decoder", false);
  fields.only("is_causal", true);  // false: tokens also attend to later ones
  if (const Json* heads = fields.find("pruned_heads"); heads != nullptr && !heads->empty()) {
    fields.refuse("pruned_heads", *heads, "empty: Tessera does not support pruned heads");
  }
  if (const Json* quantized = fields.find("quantization_config"); quantized != nullptr) {
    throw DataError(str(where,
                        ": \"quantization_config\": the tensors are quantized. Use a folder "
                        "in fp32, bf16 or fp16."));
  }
  if (const Json* code = fields.find("auto_map"); code != nullptr && !code->empty()) {
    throw DataError(str(where,
                        ": \"auto_map\": the model needs its own Python code, which Tessera does "
                        "not run"));
  }
  std::vector<std::string> unknown = fields.finish(config_fields());
  unknown.insert(unknown.end(), unknown_rope.begin(), unknown_rope.end());
  if (!unknown.empty()) {
    cut_list(unknown, 12);
    config.notes.push_back(str(where, ": ", join(unknown, ", "),
                               unknown.size() == 1 ? " is a field" : " are fields",
                               " unknown to Tessera and ignored, as in transformers. The export "
                               "keeps what is in the file."));
  }
  try {
    check(config.shape);
  } catch (const UsageError& error) {
    throw DataError(str(where, ": ", error.what()));
  }
  return config;
}

}  // namespace tessera::huggingface
