#include "tessera/huggingface/config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/strict_json.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/config_fields.h"
#include "tessera/huggingface/folder.h"

namespace tessera::huggingface {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostConfigBytes = std::int64_t{16} << 20;
constexpr int kMostConfigDepth = 32;
constexpr std::int64_t kMostSize = (std::int64_t{1} << 31) - 1;  // products of two do not overflow

// The fields of an object, each read once; what nobody read is looked at in the end.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  // Null counts as absent.
  const Json* find(const std::string& name) {
    read_.insert(name);
    const auto it = object_.find(name);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has(const std::string& name) { return find(name) != nullptr; }

  std::optional<std::int64_t> whole(const std::string& name, std::int64_t least = 1) {
    const Json* const value = find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<std::uint64_t>() > std::uint64_t{kMostSize})) {
      refuse(name, *value, str("a whole number of at least ", least));
    }
    const auto number = value->get<std::int64_t>();
    if (number < least || number > kMostSize) {
      refuse(name, *value, str("a whole number from ", least, " to ", kMostSize));
    }
    return number;
  }
  std::int64_t needed(const std::string& name) {
    if (const auto value = whole(name)) return *value;
    throw DataError(str(where_, ": ", quote(name),
                        " is missing; without it the size of the model is not known"));
  }
  double number(const std::string& name, double otherwise, double least, double most) {
    const Json* const value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(name, *value, "a number");
    const auto got = value->get<double>();
    if (!(got >= least && got <= most))
      refuse(name, *value, str("a number from ", least, " to ", most));
    return got;
  }
  bool flag(const std::string& name, bool otherwise) {
    const Json* const value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(name, *value, "true or false");
    return value->get<bool>();
  }
  std::string word(const std::string& name, const std::string& otherwise) {
    const Json* const value = find(name);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) refuse(name, *value, "a text");
    return value->get<std::string>();
  }
  // A field that Tessera has in one way only.
  void only(const std::string& name, bool wanted) {
    if (flag(name, wanted) == wanted) return;
    throw DataError(str(where_, ": ", quote(name), " is ", !wanted,
                        ", which changes what the model computes, and Tessera's models have it as ",
                        wanted));
  }
  [[noreturn]] void refuse(const std::string& name, const Json& got,
                           const std::string& wanted) const {
    std::string shown = got.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (shown.size() > 80) shown = shown.substr(0, 77) + "...";
    throw DataError(str(where_, ": ", quote(name), " is ", shown, "; wanted ", wanted));
  }
  // [Note: fields]
  void finish(const std::set<std::string, std::less<>>& harmless) const {
    std::vector<std::string> unknown;
    for (const auto& [name, value] : object_.items()) {
      if (read_.contains(name) || harmless.contains(name)) continue;
      const bool off = value.is_null() || value == false ||
                       ((value.is_structured() || value.is_string()) && value.empty());
      if (!off) unknown.push_back(quote(name));
    }
    if (unknown.empty()) return;
    throw DataError(str(where_, ": nothing is known of ", join(unknown, ", "),
                        ", which may change what the model computes; remove what does not from a "
                        "copy of the file"));
  }
  const std::string& where() const { return where_; }
  const Json& object() const { return object_; }

 private:
  const Json& object_;
  const std::string where_;
  std::set<std::string> read_;
};

// The rotary positions: "rope_parameters" of newer files, or "rope_theta" and "rope_scaling".
void read_rotary(Fields& fields, ModelShape& shape) {
  shape.rotary_base = fields.number("rope_theta", 1e4, 1e-3, 1e15);
  const bool newer = fields.has("rope_parameters");
  const bool older = fields.has("rope_scaling");
  if (fields.number("partial_rotary_factor", 1, 0, 1) != 1) {
    throw DataError(str(fields.where(),
                        ": \"partial_rotary_factor\" is not 1; Tessera's rotary "
                        "positions turn all of a head"));
  }
  if (!newer && !older) return;
  const std::string name = newer ? "rope_parameters" : "rope_scaling";
  const Json& object = *fields.find(name);
  if (newer && older && object != *fields.find("rope_scaling")) {
    throw DataError(str(fields.where(),
                        ": \"rope_parameters\" and \"rope_scaling\" differ; wanted "
                        "one of them"));
  }
  if (!object.is_object()) fields.refuse(name, object, "an object, or null");
  Fields rope(object, str(fields.where(), ": ", name));
  shape.rotary_base = rope.number("rope_theta", shape.rotary_base, 1e-3, 1e15);
  if (rope.number("partial_rotary_factor", 1, 0, 1) != 1) {
    throw DataError(str(rope.where(),
                        ": \"partial_rotary_factor\" is not 1; Tessera's rotary "
                        "positions turn all of a head"));
  }
  const std::string older_kind = rope.word("type", "default");
  const std::string kind = rope.word("rope_type", older_kind);
  RotaryScaling& scaling = shape.rotary_scaling;
  if (kind == "default") {
    rope.find("original_max_position_embeddings");
    rope.find("factor");  // of 1.0, or not looked at
  } else if (kind == "linear") {
    scaling.kind = RotaryScaling::Kind::linear;
    if (!rope.has("factor")) throw DataError(str(rope.where(), ": \"factor\" is missing"));
    scaling.factor = rope.number("factor", 1, 1e-6, 1e9);
    rope.find("original_max_position_embeddings");
  } else if (kind == "llama3") {
    scaling.kind = RotaryScaling::Kind::llama3;
    for (const char* const part :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      if (!rope.has(part)) throw DataError(str(rope.where(), ": ", quote(part), " is missing"));
    }
    scaling.factor = rope.number("factor", 1, 1e-6, 1e9);
    scaling.low_freq_factor = rope.number("low_freq_factor", 1, 1e-6, 1e9);
    scaling.high_freq_factor = rope.number("high_freq_factor", 4, 1e-6, 1e9);
    scaling.original_positions = rope.needed("original_max_position_embeddings");
  } else {
    throw DataError(str(rope.where(), ": rotary scaling is ", quote(kind),
                        ", wanted default, linear or llama3; Tessera has no other"));
  }
  rope.finish({});
}

// Which layers see a window only, of models that say so.
void read_windows(Fields& fields, Config& config) {
  ModelShape& shape = config.shape;
  const std::string& family = config.family;
  if (family == "mistral") {
    // Absent is not null here: transformers then takes 4096.
    const bool absent = !fields.object().contains("sliding_window");
    shape.window = fields.whole("sliding_window").value_or(absent ? 4096 : 0);
  } else if (family == "qwen2") {
    const std::int64_t window =
        fields.whole("sliding_window")
            .value_or(fields.object().contains("sliding_window") ? 0 : 4096);
    const std::int64_t from = fields.whole("max_window_layers", 0).value_or(28);
    if (fields.flag("use_sliding_window", false)) {
      shape.window = window;
      shape.window_from = std::min(from, shape.layers);
    }
  }
  const Json* const types = fields.find("layer_types");
  if (types == nullptr) return;
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != shape.layers) {
    fields.refuse("layer_types", *types,
                  str("a list of ", shape.layers, " texts, one for each layer"));
  }
  std::int64_t full = 0;  // before the first that slides
  bool slides = false;
  for (const Json& type : *types) {
    if (type == "sliding_attention") {
      slides = true;
    } else if (type != "full_attention") {
      fields.refuse("layer_types", type, "full_attention or sliding_attention");
    } else if (slides) {
      throw DataError(str(fields.where(),
                          ": \"layer_types\" has layers that see all behind one "
                          "with a window; Tessera's windows begin at one layer and "
                          "go on to the last"));
    } else {
      ++full;
    }
  }
  if (family == "qwen2") {
    if (slides && shape.window == 0) {
      throw DataError(str(fields.where(),
                          ": \"layer_types\" has layers with a window, and "
                          "\"use_sliding_window\" or \"sliding_window\" says that "
                          "there is none"));
    }
    shape.window_from = slides ? full : 0;
    if (!slides) shape.window = 0;
  } else if (slides != (shape.window > 0) || (slides && full > 0)) {
    throw DataError(str(fields.where(),
                        ": \"layer_types\" does not say what \"sliding_window\" says "
                        "of all layers"));
  }
}

void read_llama(Fields& fields, Config& config) {
  ModelShape& shape = config.shape;
  const bool llama = config.family == "llama";
  shape.hidden = fields.needed("hidden_size");
  shape.layers = fields.needed("num_hidden_layers");
  shape.heads = fields.needed("num_attention_heads");
  shape.kv_heads = llama ? fields.whole("num_key_value_heads").value_or(shape.heads)
                   : fields.object().contains("num_key_value_heads")
                       ? fields.whole("num_key_value_heads").value_or(shape.heads)
                       : fields.needed("num_key_value_heads");
  shape.ffn = fields.needed("intermediate_size");
  shape.vocab = fields.needed("vocab_size");
  shape.head_width = fields.whole("head_dim").value_or(0);
  if (shape.head_width * shape.heads == shape.hidden) shape.head_width = 0;
  shape.positions = 0;
  shape.context = fields.whole("max_position_embeddings").value_or(0);
  shape.swiglu = true;
  const std::string act = fields.word("hidden_act", "silu");
  if (act != "silu" && act != "swish") {
    throw DataError(str(fields.where(), ": \"hidden_act\" is ", quote(act),
                        "; wanted silu, which Tessera's gated MLP has"));
  }
  const bool attention = llama && fields.flag("attention_bias", false);
  const bool mlp = llama && fields.flag("mlp_bias", false);
  shape.biases = Biases(attention || config.family == "qwen2", attention, mlp, false);
  shape.tied = fields.flag("tie_word_embeddings", false);
  shape.norm_eps = fields.number("rms_norm_eps", 1e-6, 0, 1);
  config.dropout = fields.number("attention_dropout", 0, 0, 1);
  read_rotary(fields, shape);
  read_windows(fields, config);
}

void read_gpt2(Fields& fields, Config& config) {
  ModelShape& shape = config.shape;
  // Each has two names.
  const auto size = [&](const char* name, const char* other) {
    return fields.has(other) && !fields.has(name) ? fields.needed(other) : fields.needed(name);
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
                        "; wanted gelu_new, gelu or relu, which Tessera's MLP has"));
  }
  shape.norm_eps = fields.number("layer_norm_epsilon", 1e-5, 0, 1);
  shape.tied = fields.flag("tie_word_embeddings", true);
  fields.only("scale_attn_weights", true);
  fields.only("scale_attn_by_inverse_layer_idx", false);
  fields.only("add_cross_attention", false);
  fields.flag("reorder_and_upcast_attn", false);  // of rounding: ours is in fp32 anyway
  for (const char* const name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) {
    config.dropout = std::max(config.dropout, fields.number(name, 0.1, 0, 1));
  }
}

}  // namespace

Config parse_config(std::string_view json, const std::string& where) {
  const Json object = checkpoint::parse_strictly(json, kMostConfigDepth, where);
  if (!object.is_object()) throw DataError(str(where, " is no JSON object"));
  Fields fields(object, where);
  Config config;
  config.family = fields.word("model_type", "");
  const std::vector<std::string> known = {"gpt2", "llama", "qwen2", "mistral"};
  if (std::find(known.begin(), known.end(), config.family) == known.end()) {
    throw DataError(str(where, ": \"model_type\" is ", quote(config.family), "; wanted ",
                        join(known, ", "), ", whose layers Tessera has"));
  }
  if (config.family == "gpt2") {
    read_gpt2(fields, config);
  } else {
    read_llama(fields, config);
  }
  config.shape.init_range = fields.number("initializer_range", 0.02, 0, 1e3);
  fields.only("is_encoder_decoder", false);
  if (const Json* heads = fields.find("pruned_heads"); heads != nullptr && !heads->empty()) {
    fields.refuse("pruned_heads", *heads, "none: Tessera's layers are all alike");
  }
  if (const Json* quantized = fields.find("quantization_config"); quantized != nullptr) {
    throw DataError(str(where,
                        ": \"quantization_config\": the tensors are quantized; wanted "
                        "a folder in fp32, bf16 or fp16"));
  }
  if (const Json* code = fields.find("auto_map"); code != nullptr && !code->empty()) {
    throw DataError(str(where,
                        ": \"auto_map\": the model brings code of its own, which Tessera does "
                        "not run"));
  }
  fields.finish(harmless_fields());
  try {
    check(config.shape);
  } catch (const UsageError& error) {
    throw DataError(str(where, ": ", error.what()));
  }
  return config;
}

Config read_config(const std::string& folder) {
  const std::string path = folder + "/" + kConfigName;
  const std::string wanted = "the config.json of a model";
  if (!has_config(folder))
    return parse_config(read_small_file(path, kMostConfigBytes, wanted), path);
  return parse_config(read_small_file(file_in(folder, kConfigName), kMostConfigBytes, wanted),
                      path);
}

bool has_config(const std::string& path) {
  return kind_of_file(path + "/" + kConfigName) == "a regular file";
}

ModelShape find_model(const std::string& name_or_folder) {
  const std::string kind = kind_of_file(name_or_folder);
  if (has_config(name_or_folder)) return read_config(name_or_folder).shape;
  if (name_or_folder.find('/') != std::string::npos) {
    throw UsageError(str("model ", quote(name_or_folder), " is ",
                         kind == "nothing"    ? "not there"
                         : kind == "a folder" ? "a folder without a config.json"
                                              : kind,
                         "; wanted the name of a model, or a folder with a config.json"));
  }
  try {
    return find_model_shape(name_or_folder);
  } catch (const UsageError& error) {
    throw UsageError(str(error.what(), ", or a folder with a config.json"));
  }
}

}  // namespace tessera::huggingface
