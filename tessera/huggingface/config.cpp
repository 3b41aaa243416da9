#include "tessera/huggingface/config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/checkpoint/files.h"
#include "tessera/checkpoint/strict_json.h"
#include "tessera/core/errors.h"
#include "tessera/core/files.h"
#include "tessera/core/text.h"
#include "tessera/huggingface/config_fields.h"
#include "tessera/huggingface/config_rotary.h"
#include "tessera/huggingface/folder.h"

namespace tessera::huggingface {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMostConfigBytes = std::int64_t{16} << 20;
constexpr int kMostConfigDepth = 32;

// Reads which layers use sliding-window attention.
void read_windows(Fields& fields, Config& config) {
  ModelShape& shape = config.shape;
  const std::string& family = config.family;
  if (family == "mistral") {
    // An absent field differs from null: transformers then uses 4096.
    const bool absent = !fields.object().contains("sliding_window");
    shape.window = fields.whole("sliding_window").value_or(absent ? 4096 : 0);
  } else if (family == "llama") {
    // Files converted from Qwen2 keep its fields, switched off.
    if (fields.object().contains("use_sliding_window") &&
        !fields.flag("use_sliding_window", false)) {
      fields.find("sliding_window");
      fields.find("max_window_layers");
    }
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
                  str("a list of ", shape.layers, " strings, one per layer"));
  }
  std::int64_t full = 0;  // layers with full attention before the first sliding one
  bool slides = false;
  for (const Json& type : *types) {
    if (type == "sliding_attention") {
      slides = true;
    } else if (type != "full_attention") {
      fields.refuse("layer_types", type, "full_attention or sliding_attention");
    } else if (slides) {
      throw DataError(str(fields.where(),
                          ": \"layer_types\" has full attention after a sliding layer. Tessera "
                          "supports sliding windows only from one layer to the last."));
    } else {
      ++full;
    }
  }
  if (family == "qwen2") {
    if (slides && shape.window == 0) {
      throw DataError(str(fields.where(),
                          ": \"layer_types\" has sliding layers, but "
                          "\"use_sliding_window\" or \"sliding_window\" disables the window"));
    }
    shape.window_from = slides ? full : 0;
    if (!slides) shape.window = 0;
  } else if (slides != (shape.window > 0) || (slides && full > 0)) {
    throw DataError(
        str(fields.where(),
            ": \"layer_types\" contradicts \"sliding_window\", which applies to all layers"));
  }
}

void read_llama(Fields& fields, Config& config, std::vector<std::string>& unknown_rope) {
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
                        "; must be silu, which Tessera's gated MLP uses"));
  }
  const bool attention = llama && fields.flag("attention_bias", false);
  const bool mlp = llama && fields.flag("mlp_bias", false);
  shape.biases = Biases(attention || config.family == "qwen2", attention, mlp, false);
  shape.tied = fields.flag("tie_word_embeddings", false);
  shape.norm_eps = fields.number("rms_norm_eps", 1e-6, 0, 1);
  config.dropout = fields.number("attention_dropout", 0, 0, 1);
  read_rotary(fields, shape, unknown_rope);
  read_windows(fields, config);
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
  const Json object = checkpoint::parse_strictly(json, kMostConfigDepth, where);
  if (!object.is_object()) throw DataError(str(where, " is not a JSON object"));
  Fields fields(object, where);
  Config config;
  config.family = fields.word("model_type", "");
  const std::vector<std::string> known = {"gpt2", "llama", "qwen2", "mistral"};
  if (std::find(known.begin(), known.end(), config.family) == known.end()) {
    throw DataError(str(where, ": \"model_type\" is ", quote(config.family), "; must be one of ",
                        join(known, ", ")));
  }
  std::vector<std::string> unknown_rope;
  if (config.family == "gpt2") {
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
                         kind == "nothing"    ? "missing"
                         : kind == "a folder" ? "a folder without a config.json"
                                              : kind,
                         "; must be the name of a model or a folder with a config.json"));
  }
  try {
    return find_model_shape(name_or_folder);
  } catch (const UsageError& error) {
    throw UsageError(str(error.what(), ", or a folder with a config.json"));
  }
}

}  // namespace tessera::huggingface
