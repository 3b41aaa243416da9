#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tessera/data/tokenizer_spec.h"

namespace tessera::data {

// The parts of a tokenizer.json that are made of steps. Each adds its own to `spec`, whose model
// and added tokens are there already, and throws DataError for what it does not know.
void read_normalizer(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);
void read_pre_tokenizer(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);
void read_post_processor(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);
void read_decoder(const nlohmann::json& json, const std::string& where, TokenizerSpec& spec);

// What must hold between steps.
void check_steps(TokenizerSpec& spec, const std::string& where);

}  // namespace tessera::data
