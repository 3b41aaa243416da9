// tessera dashboard: execs the program in dashboard_main.cpp, which serves the page.

#include "tessera/cli/commands.h"

namespace tessera::cli {

int dashboard_command(int argc, char** argv) {
  return execute_sibling("tessera-dashboard",
                         "In a source tree `make build` builds it; this needs zlib (Debian: "
                         "zlib1g-dev). `make train` builds only the trainer",
                         "dashboard", std::vector<char*>(argv + 1, argv + argc));
}

}  // namespace tessera::cli
