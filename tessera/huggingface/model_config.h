#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

inline constexpr const char* kConfigName = "config.json";

// [Note: fields] Contents of a config.json whose model_type is one of kFamilies. Fields that these
// families compute with are read. A field that changes the computation of other models
// (config_fields.cpp lists them) is an error unless it is off. Every other field is ignored and
// kept by the export: silently if it is known not to matter (file names, versions, special token
// ids, generation settings), otherwise with one note for all of them. transformers ignores such
// fields too. Absent fields have the defaults of transformers.
struct Config {
  ModelShape shape;                // without a name
  double dropout = 0;              // largest of the dropout fields; not part of the shape
  std::vector<std::string> notes;  // for the user: unknown fields that were ignored
};
// Parses a config.json. `where` names it in errors. Throws DataError.
Config parse_config(std::string_view json, const std::string& where);
Config read_config(const std::string& folder);

// Returns true if `path` is a folder with a config.json.
bool has_config(const std::string& path);
// Returns the model that --model names: such a folder, or one of model_shapes(). Throws UsageError
// or DataError.
ModelShape find_model(const std::string& name_or_folder);

// Returns the config.json of a model. `dtype` is that of its file ("float32"). Throws UsageError if
// no family has such a shape.
std::string config_json(const ModelShape& shape, const std::string& dtype);
// Returns the family of a model: its own, or one that has all its parts. Throws UsageError if no
// family has such a shape.
Family family_of(const ModelShape& shape);

}  // namespace tessera::huggingface
