// The program with the commands that need torch. The front program `tessera` executes it; its
// arguments are those of the front program.

#include <algorithm>
#include <string>

#include "tessera/cli/commands.h"
#include "tessera/core/errors.h"

namespace tessera::cli {
namespace {

int dispatch(const std::string& wanted, int argc, char** argv) {
#define TESSERA_FRONT(name, summary)
#define TESSERA_TORCH(name, summary) \
  if (wanted == #name) return name##_command(argc, argv);
#define TESSERA_PART(name) \
  if (wanted == #name) return name##_command(argc, argv);
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH
#undef TESSERA_PART
  throw UsageError(wanted + ": not a command of tessera-torch; start it through tessera");
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
