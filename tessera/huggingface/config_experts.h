#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/model_shape.h"
#include "tessera/huggingface/config_fields.h"

namespace tessera::huggingface {

// Returns the property of a model_type with experts that Tessera does not support, or "" for types
// that it reads or does not know.
std::string unsupported_property(std::string_view model_type);

// Reads the fields of experts for the families that have them; `shape` must already have its other
// sizes. Appends notes for the user. Losses that balance the experts are settings of a training
// run, like dropout, so the shape has none.
void read_experts(Fields& fields, ModelShape& shape, std::vector<std::string>& notes);

// Writes these fields.
void write_experts(nlohmann::ordered_json& json, const ModelShape& shape, Family family);

// Returns the property of the experts that the family does not have, or "".
std::string experts_mismatch(const ModelShape& shape, Family family);

}  // namespace tessera::huggingface
