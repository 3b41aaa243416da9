#pragma once

#include "tessera/core/model_shape.h"
#include "tessera/huggingface/config_fields.h"

namespace tessera::huggingface {

// The rotary positions: "rope_parameters" of newer files, or "rope_theta" and "rope_scaling". Into
// a shape that has its context. Absent parts are as transformers 5 has them. Appends the quoted
// names of fields that are not known to `unknown`.
void read_rotary(Fields& fields, ModelShape& shape, std::vector<std::string>& unknown);

}  // namespace tessera::huggingface
