// tessera dashboard: becomes the program that serves the page, see dashboard_main.cpp.

#include "tessera/cli/commands.h"

namespace tessera::cli {

int dashboard_command(int argc, char** argv) {
  return execute_sibling("tessera-dashboard",
                         "In a source tree `make build` builds it, and needs zlib (Debian: "
                         "zlib1g-dev); `make train` builds the trainer alone",
                         "dashboard", std::vector<char*>(argv + 1, argv + argc));
}

}  // namespace tessera::cli
