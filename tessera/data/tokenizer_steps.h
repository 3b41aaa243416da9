#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// Read the parts of a tokenizer.json that consist of steps. Each adds its steps to `spec`, whose
// model and added tokens are already set, and throws DataError for unsupported ones.
void read_normalizer(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);
void read_pre_tokenizer(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);
void read_post_processor(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);
void read_decoder(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);

// Checks the constraints between steps.
void check_steps(TokenizerSpec& spec, const std::string& where);

}  // namespace tessera::data
