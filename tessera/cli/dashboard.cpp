// tessera dashboard: becomes the program that serves the page, see dashboard_main.cpp.

#include "tessera/cli/commands.h"

namespace tessera::cli {

int dashboard_command(int argc, char** argv) {
  return execute_sibling("tessera-dashboard",
                         "It is built where cpp-httplib is found (Debian: libcpp-httplib-dev "
                         "libssl-dev libbrotli-dev zlib1g-dev): install it and run `make build`",
                         "dashboard", std::vector<char*>(argv + 1, argv + argc));
}

}  // namespace tessera::cli
