#pragma once

#include <string>
#include <string_view>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

// Returns the shape of a model in the format of checkpoints (Description::model).
std::string shape_json(const ModelShape& shape);
// Parses such a text. Fields missing in older checkpoints have their defaults. Throws DataError
// that names `where` if no model can have the shape.
ModelShape parse_shape(std::string_view json, const std::string& where);

}  // namespace tessera::huggingface
