#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::checkpoint {

// Parses JSON, and refuses what a lenient parser lets pass: a key twice in one object, of which
// readers would take now the first and now the last, and nesting deeper than `most_depth`. `where`
// names the text in errors. Throws DataError.
nlohmann::json parse_strictly(std::string_view text, int most_depth, const std::string& where);

}  // namespace tessera::checkpoint
