#pragma once

#include <string>
#include <string_view>

namespace tessera {

// Returns the message of an nlohmann::json exception without its "[json.exception.parse_error.101]
// " prefix, which does not help the author of the file.
inline std::string json_error_text(std::string_view what) {
  const std::size_t end = what.starts_with("[json.exception.") ? what.find("] ") : what.npos;
  return std::string(end == what.npos ? what : what.substr(end + 2));
}

}  // namespace tessera
