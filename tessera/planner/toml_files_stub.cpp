// Used if toml++ was not found: there is no catalog, and the errors state why.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/hardware.h"
#include "tessera/planner/toml_text.h"

namespace tessera::planner {

void Catalog::parse(std::string_view, const std::string& where) {
  throw UsageError(str(where,
                       ": this build cannot read TOML, so it has no hardware catalog. toml++ was ",
                       "not found (Debian: libtomlplusplus-dev)"));
}

void Catalog::read(const std::string& path) { parse("", path); }

std::vector<FileSetting> parse_settings(std::string_view, const std::string& where) {
  throw UsageError(str(where, ": this build cannot read TOML: toml++ was not found (Debian: ",
                       "libtomlplusplus-dev). Give the settings as flags"));
}

}  // namespace tessera::planner
