// Built instead of experiment_toml.cpp if toml++ was not found.

#include "tessera/cli/experiment_file.h"
#include "tessera/core/errors.h"
#include "tessera/core/text.h"

namespace tessera::cli {

Experiment parse_experiment(std::string_view, const std::string& where, const std::string&) {
  throw UsageError(str(where, ": experiments are TOML, which this build cannot read: toml++ was ",
                       "not found (Debian: libtomlplusplus-dev)"));
}

}  // namespace tessera::cli
