#pragma once

#include <string>

#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::planner {

// A value of a JSON document (of nlohmann's, whichever keeps its order) as the text that a flag
// would have.
template <typename Json>
std::string setting_text(const std::string& key, const Json& value) {
  if (value.is_string()) return value.template get<std::string>();
  if (value.is_boolean()) return value.template get<bool>() ? "true" : "false";
  if (value.is_number()) return value.dump();
  throw UsageError(
      str(quote(key), ": got ", value.type_name(), ", wanted a number, a string, true or false"));
}

}  // namespace tessera::planner
