// Where toml++ was not found: there is no catalogue, and who asks for it hears why.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/planner/hardware.h"

namespace tessera::planner {

void Catalogue::parse(std::string_view, const std::string& where) {
  throw UsageError(str(where, ": this build cannot read TOML, so it knows no hardware: toml++ was ",
                       "not found (Debian: libtomlplusplus-dev)"));
}

void Catalogue::read(const std::string& path) { parse("", path); }

}  // namespace tessera::planner
