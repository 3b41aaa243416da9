#pragma once

#include "tessera/core/model_shape.h"
#include "tessera/huggingface/config_fields.h"

namespace tessera::huggingface {

// Reads the rotary position settings: "rope_parameters" of newer files, or "rope_theta" and
// "rope_scaling". `shape` must already have its context. Absent fields have the defaults of
// transformers 5. Appends the quoted names of unknown fields to `unknown`.
void read_rotary(Fields& fields, ModelShape& shape, std::vector<std::string>& unknown);

}  // namespace tessera::huggingface
