#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

// What a command prints with --json, a line end behind it. Paths and texts of users may hold bytes
// that are no UTF-8, which JSON cannot have: they become U+FFFD. An `indent` of -1 is one line.
inline std::string json_text(const nlohmann::ordered_json& json, int indent = 2) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::cli
