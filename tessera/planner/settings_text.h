#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/settings.h"

namespace tessera::planner {

// What stands behind a setting's line: "", or a comment; nothing leaves the setting out.
using LineNote = std::function<std::optional<std::string>(const Field&)>;

// A file for --config: TOML, with a table for each group.
std::string settings_toml(const RunSettings& settings, const std::vector<Field>& fields,
                          const LineNote& note);

}  // namespace tessera::planner
