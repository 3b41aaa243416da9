// Where toml++ was not found.

#include "tessera/cli/settings_file.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {

std::vector<FileSetting> parse_settings(std::string_view, const std::string& where) {
  throw UsageError(str(where, ": this build cannot read TOML: toml++ was not found (Debian: ",
                       "libtomlplusplus-dev)"));
}

}  // namespace tessera::cli
