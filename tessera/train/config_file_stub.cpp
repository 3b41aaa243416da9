// Where toml++ was not found.

#include "tessera/core/errors.h"
#include "tessera/core/text.h"
#include "tessera/train/config.h"

namespace tessera::train {

void read_config(TrainConfig&, const std::string& path, std::vector<std::string>*) {
  throw UsageError(str("--config: got ", quote(path),
                       ", but this build cannot read TOML: toml++ was not found (Debian: "
                       "libtomlplusplus-dev). Give the settings as flags"));
}

void parse_config(TrainConfig& config, std::string_view, const std::string& where,
                  std::vector<std::string>* named) {
  read_config(config, where, named);
}

}  // namespace tessera::train
