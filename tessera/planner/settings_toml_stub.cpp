// Where toml++ was not found.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/settings_toml.h"

namespace tessera::planner {

std::vector<FileSetting> parse_settings(std::string_view, const std::string& where) {
  throw UsageError(str(where, ": this build cannot read TOML: toml++ was not found (Debian: ",
                       "libtomlplusplus-dev). Give the settings as flags"));
}

}  // namespace tessera::planner
