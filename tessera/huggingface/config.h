#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

inline constexpr const char* kConfigName = "config.json";

// [Note: fields] A config.json of model_type gpt2, llama, qwen2 or mistral. A field that changes
// what the model computes is honoured, or refused by its name. Those that do not (names of files,
// versions, ids of special tokens, how texts are generated) are in a list and ignored. A field that
// is neither is ignored where it is null, false or empty, which switches nothing on, and refused
// otherwise; where false does change something, the field is one of those that are read. What is
// absent has the default that transformers gives it.
struct Config {
  ModelShape shape;    // without a name
  std::string family;  // model_type
  double dropout = 0;  // the largest of those it asks for; none of them is in the shape
};
// `where` names the text in errors. Throws DataError.
Config parse_config(std::string_view json, const std::string& where);
Config read_config(const std::string& folder);

// Whether `path` is a folder with a config.json.
bool has_config(const std::string& path);
// What --model names: such a folder, or one of model_shapes(). Throws UsageError or DataError.
ModelShape find_model(const std::string& name_or_folder);

// The config.json of a model. `dtype` is that of its file ("float32"). Throws UsageError for a
// shape that no family has.
std::string config_json(const ModelShape& shape, const std::string& dtype);
// gpt2, llama, qwen2 or mistral. Throws UsageError likewise.
std::string family_of(const ModelShape& shape);

}  // namespace tessera::huggingface
