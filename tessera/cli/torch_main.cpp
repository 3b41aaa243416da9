// The program tessera-torch: commands that need torch. The front program `tessera` executes it with
// its own arguments.

#include <algorithm>
#include <string>

#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"

namespace tessera::cli {
namespace {

int dispatch(const std::string& command, int argc, char** argv) {
#define TESSERA_FRONT(name, summary)
#define TESSERA_TORCH(name, summary) \
  if (command == #name) return name##_command(argc, argv);
#define TESSERA_PART(name) \
  if (command == #name) return name##_command(argc, argv);
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH
#undef TESSERA_PART
  throw UsageError(command + ": not a command of tessera-torch; run it through tessera");
}

}  // namespace
}  // namespace tessera::cli

int main(int argc, char** argv) {
  const std::string command = argc > 1 ? argv[1] : "";
  std::string shown = command.empty() ? "tessera" : "tessera " + command;
  std::replace(shown.begin(), shown.end(), '_', ' ');
  return tessera::cli::guarded(shown,
                               [&] { return tessera::cli::dispatch(command, argc - 1, argv + 1); });
}
