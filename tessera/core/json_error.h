#pragma once

#include <string>
#include <string_view>

namespace tessera {

// What nlohmann's json says is wrong, without the tag that it begins with,
// "[json.exception.parse_error.101] ", which means nothing to whoever wrote the file.
inline std::string json_error_text(std::string_view what) {
  const std::size_t end = what.starts_with("[json.exception.") ? what.find("] ") : what.npos;
  return std::string(end == what.npos ? what : what.substr(end + 2));
}

}  // namespace tessera
