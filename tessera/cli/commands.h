#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::cli {

// Every command is such a function. It returns the exit status, and throws UsageError for a call
// that is wrong; argv[0] is the command's name.
#define TESSERA_FRONT(name, summary) int name##_command(int argc, char** argv);
#define TESSERA_TORCH(name, summary) int name##_command(int argc, char** argv);
#include "tessera/cli/commands.def"
#undef TESSERA_FRONT
#undef TESSERA_TORCH

struct CommandInfo {
  std::string_view name;
  std::string_view summary;
  bool torch;
};

// All commands, also those of the other program.
std::vector<CommandInfo> commands();
std::vector<std::string> command_names();

// Runs `body` and turns what it throws into one line on stderr and an exit status: 2 for a
// UsageError, 1 for all else. `who` begins the line: "tessera run".
int guarded(const std::string& who, const std::function<int()>& body);

}  // namespace tessera::cli
