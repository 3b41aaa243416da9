#include "tessera/cli/commands.h"

#include <exception>

#include "tessera/core/errors.h"
#include "tessera/core/log.h"
#include "tessera/core/text.h"

namespace tessera::cli {

std::vector<CommandInfo> commands() {
  return {
#define TESSERA_FRONT(name, summary) {#name, summary, false},
#define TESSERA_TORCH(name, summary) {#name, summary, true},
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH
  };
}

std::vector<std::string> command_names() {
  std::vector<std::string> names;
  for (const CommandInfo& command : commands()) names.emplace_back(command.name);
  return names;
}

int guarded(const std::string& who, const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    write_all(2, str(who, ": ", error.what(), "\n", "Try: ", who, " --help\n"));
    return 2;
  } catch (const std::exception& error) {
    write_all(2, str(who, ": ", error.what(), "\n"));
    return 1;
  }
}

}  // namespace tessera::cli
