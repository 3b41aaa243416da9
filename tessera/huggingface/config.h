#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

inline constexpr const char* kConfigName = "config.json";

// [Note: fields] A config.json of model_type gpt2, llama, qwen2 or mistral. A field that these
// families compute with is read. A field that changes the computation of other models (a table in
// config_fields.cpp has them) is refused by its name unless it is off. Every other field is ignored
// and kept by the export: silently where it is known not to matter (file names, versions, ids of
// special tokens, settings of generation), with one note for all others. transformers ignores such
// fields too. What is absent has the default that transformers gives it.
struct Config {
  ModelShape shape;                // without a name
  std::string family;              // model_type
  double dropout = 0;              // the largest of those it asks for; none of them is in the shape
  std::vector<std::string> notes;  // for the user: fields that were ignored and are not known
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
