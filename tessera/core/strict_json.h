#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera {

// Parses JSON strictly: rejects duplicate keys in an object, of which some readers use the first
// and others the last, and nesting deeper than `most_depth`. `where` names the text in errors.
// Throws DataError.
nlohmann::json parse_strictly(std::string_view text, int most_depth, const std::string& where);

}  // namespace tessera
