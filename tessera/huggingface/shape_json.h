#pragma once

#include <string>
#include <string_view>

#include "tessera/core/model_shape.h"

namespace tessera::huggingface {

// The shape of a model as checkpoints of `tessera train` have it (Description::model).
std::string shape_json(const ModelShape& shape);
// And back. What older checkpoints did not say has its default. Throws DataError, naming `where`,
// for what no model has.
ModelShape parse_shape(std::string_view json, const std::string& where);

}  // namespace tessera::huggingface
